"""What is measured of a contender: the images it is measured on, made once, and the figures of one round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks import workflows as durable
from benchmarks.candidate import Candidate, Unmeasured
from benchmarks.servers import DATABASE, Postgres

WHAT = ("start", "drain", "backlog", "latency", "load", "growth", "old", "idle", "cost", "workflows")
# A probe takes a millisecond or two, and the quickest drain a third of a second; a machine's mood changes by a fifth
# from one minute to the next. So of these everyone has some turns in a round.
TURNS = {"drain": 3, "latency": 3}
# Who is asked, where not everyone is.
PLAYERS = {"old": ("stepwell",), "idle": ("stepwell",), "cost": ("stepwell",), "workflows": durable.PLAYERS}
COSTS = {"1k": 1_000, "100k": 100_000, "1M": 1_000_000}
OTHERS = """
select count(*) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""
# What a start says, and the looks of the harness, are not what a run costs its worker.
STARTS = "%insert into stepwell.runs (%"
LOOKS = "%/* look */%"
COST = f"""
select coalesce(sum(total_exec_time), 0) from pg_stat_statements
 where query not ilike '{STARTS}' and query not like '{LOOKS}'
   and dbid = (select oid from pg_database where datname = current_database())
"""


# -- the images


def prepare(candidate: Candidate, what: set[str]) -> None:
    """Everything a round starts from. Whoever starts slowly gets fewer: `sizes` bounds the seconds."""
    url = candidate.on("")
    candidate.facts = candidate.ask("version", url=url)
    candidate.ask("setup", url=url)
    candidate.keep("prepared", 0)
    _find_pace(candidate)
    sizes = candidate.sizes
    # Four times the seconds of a measured start: the images are made once.
    queued = _affordable(candidate, sizes.bulk, 4 * sizes.bulk_seconds)
    if what & {"drain", "old"} or ("workflows" in what and candidate.key == "stepwell"):
        _image(candidate, "queued", queued)
    if "backlog" in what:
        _image(candidate, "backlog", _affordable(candidate, sizes.backlog, sizes.backlog_seconds))
    if "growth" in what:
        for name in ("finished", "scheduled"):
            _image(candidate, name, queued, **{name: sizes.grown})
    if "cost" in what and candidate.key == "stepwell":
        for name, count in COSTS.items():
            if name != "1k":
                _image(candidate, f"cost_{name}", min(count, sizes.grown))
    if "old" in what and candidate.key == "stepwell":
        candidate.attempt("image old", lambda: candidate.hold())
    if "workflows" in what:
        durable.prepare(candidate)


def _find_pace(candidate: Candidate) -> None:
    """Roughly how fast it starts in bulk; once more if the first answer came too soon to mean anything."""
    for count in (500, 5_000):
        took = candidate.ask("bulk", url=candidate.on("prepared"), count=count)["seconds"]
        candidate.start_rate = max(candidate.start_rate, count / took)
        if took > 0.3:
            return


def _affordable(candidate: Candidate, wanted: int, seconds: float) -> int:
    return max(200, min(wanted, int(candidate.start_rate * seconds) // 100 * 100))


def _image(candidate: Candidate, name: str, queued: int, **filled: float) -> None:
    def make() -> None:
        url = candidate.on("prepared")
        if filled:
            candidate.ask("fill", url=url, timeout=600, **filled)
        took = candidate.ask("bulk", url=url, count=queued, timeout=600)["seconds"]
        candidate.start_rate = max(candidate.start_rate, queued / took)
        candidate.keep(name, queued)

    candidate.attempt(f"image {name}", make)


# -- one round


def measure(candidate: Candidate, part: str) -> None:
    """One part of one round of one contender, step by step."""
    for step, figure in PARTS[part](candidate):
        candidate.attempt(step, figure)


def plays(key: str, what: set[str]) -> bool:
    """Whether there is anything of this that the contender is asked."""
    return any(name not in PLAYERS or key in PLAYERS[name] for name in what)


Steps = Iterator[tuple[str, Callable[[], None]]]


def start(candidate: Candidate) -> Steps:
    sizes = candidate.sizes
    count = _affordable(candidate, sizes.bulk, sizes.bulk_seconds)
    yield "bulk", lambda: _rate(candidate, "bulk", "bulk", count)
    yield "single", lambda: _rate(candidate, "single", "single", sizes.singles)
    crowd = max(sizes.singles, min(sizes.crowd, int(2 * statistics.median(candidate.figures["single"] or [1000]))))
    yield "crowd", lambda: _rate(candidate, "crowd", "single", crowd, callers=100)


def _rate(candidate: Candidate, figure: str, verb: str, count: int, **options: float) -> None:
    took = candidate.ask(verb, url=candidate.on("prepared"), count=count, **options)["seconds"]
    candidate.figures[figure].append(count / took)


def drain(candidate: Candidate) -> Steps:
    yield "drain", lambda: _drain(candidate, "drain", "queued", 1)
    yield "drain2", lambda: _drain(candidate, "drain2", "queued", 2)


def backlog(candidate: Candidate) -> Steps:
    most = candidate.sizes.backlog_drain_seconds
    yield "backlog", lambda: _drain(candidate, "backlog", "backlog", 1, most)
    yield "backlog2", lambda: _drain(candidate, "backlog2", "backlog", 2, most)


def growth(candidate: Candidate) -> Steps:
    yield "finished", lambda: _drain(candidate, "finished", "finished", 1)
    yield "scheduled", lambda: _drain(candidate, "scheduled", "scheduled", 1)


def _drain(candidate: Candidate, figure: str, image: str, processes: int, most: float = 0.0) -> None:
    url = candidate.on(image)
    before = candidate.server.mark()
    count, most = candidate.kept[image], most or candidate.sizes.drain_seconds
    told = candidate.ask("drain", url=url, count=count, processes=processes, most=most)
    written = candidate.server.mark() - before
    candidate.figures[figure].append(told["rate"])
    if figure == "drain":
        candidate.figures["rss"].append(told["rss"])
        candidate.figures["server_us"].append(told["server_cpu"] / told["window"] * 1e6)
        candidate.figures["worker_us"].append(told["cpu"] / told["window"] * 1e6)
        candidate.figures["written"].append(written / told["stored"])


def latency(candidate: Candidate) -> Steps:
    yield "calm", lambda: _latency(candidate, "calm", 0.0)


def load(candidate: Candidate) -> Steps:
    drains, starts = candidate.figures["drain"][-1:], candidate.figures["bulk"][-1:] or [candidate.start_rate]
    if drains:
        yield "loaded", lambda: _latency(candidate, "loaded", min(drains[0], starts[0]) / 2)


def _latency(candidate: Candidate, figure: str, load: float) -> None:
    sizes = candidate.sizes
    told = candidate.ask(
        "latency", url=candidate.on("prepared"), count=sizes.probes, every=0.005, load=load, most=sizes.latency_seconds
    )
    for end in ("body", "result"):
        for percent in (50, 95, 99):
            if told[end]:
                candidate.figures[f"{figure} {end} {percent}"].append(percentile(told[end], percent))


def percentile(values: list[float], percent: int) -> float:
    """The value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


# -- only of Stepwell


def old(candidate: Candidate) -> Steps:
    yield "old", lambda: _old(candidate)


def _old(candidate: Candidate) -> None:
    """Beside a transaction that was there before: nothing that has ended since, in any round, can be cleaned away."""
    held, sizes = candidate.held, candidate.sizes
    if held is None:
        raise Unmeasured(candidate.reasons.get("image old", "there is no old transaction"))
    for count in (sizes.old, candidate.kept.get("queued", sizes.bulk)):
        candidate.ask("bulk", url=held.url, count=count)
        told = candidate.ask("drain", url=held.url, count=count, most=60)
    candidate.figures["old"].append(told["rate"])
    candidate.figures["old minutes"].append((time.monotonic() - held.since) / 60)


def idle(candidate: Candidate) -> Steps:
    yield "idle", lambda: _idle(candidate)


def _idle(candidate: Candidate) -> None:
    url = candidate.on("prepared")
    _count_statements(candidate.server)
    told = candidate.ask("idle", url=url, seconds=candidate.sizes.rest)
    candidate.figures["idle core"].append(told["share"] * 100)
    candidate.figures["idle statements"].append(told["statements"])


def cost(candidate: Candidate) -> Steps:
    for name in COSTS:
        yield f"cost {name}", lambda name=name: _cost(candidate, name)


def _cost(candidate: Candidate, name: str) -> None:
    """Microseconds that the database works for a run, by its own count: all statements but the starts."""
    count = candidate.sizes.bulk
    url = candidate.on("prepared" if name == "1k" else f"cost_{name}")
    _count_statements(candidate.server)
    if name == "1k":
        candidate.ask("trickle", url=url, count=1_000, times=count // 1_000)
    else:
        # Of a million a look takes so long that many are drained between two.
        candidate.ask("drain", url=url, count=min(count * 5, candidate.kept[f"cost_{name}"] // 2), most=30)
    server = candidate.server
    assert isinstance(server, Postgres)
    # The worker has ended; its last statements may not have.
    deadline = time.monotonic() + 10
    while int(server.sql(OTHERS)) and time.monotonic() < deadline:
        time.sleep(0.02)
    runs = int(server.sql("select count(*) from stepwell.finished_runs"))
    candidate.figures[f"cost {name}"].append(float(server.sql(COST)) * 1000 / runs)


def _count_statements(server: object) -> None:
    assert isinstance(server, Postgres)
    server.sql(
        "create extension if not exists pg_stat_statements",
        f"alter database {DATABASE} set pg_stat_statements.track = 'top'",
        "select pg_stat_statements_reset()",
    )


# -- of those with workflows


def workflows(candidate: Candidate) -> Steps:
    if candidate.key == "stepwell":
        yield "plain", lambda: _drain(candidate, "plain", "queued", 1)
    yield from durable.figures(candidate)


PARTS = {each.__name__: each for each in (start, drain, backlog, latency, load, growth, old, idle, cost, workflows)}
