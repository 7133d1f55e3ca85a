"""One contender as the harness sees it: a script to ask, a server to ask it on, and what was measured so far."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import Held, Postgres, Redis

CONTENDERS = Path(__file__).parent / "contenders"


class Unmeasured(Exception):
    """A figure that could not be had, and why."""


@dataclass
class Sizes:
    """How much of everything. `seconds` bound what a slow contender is given to do."""

    bulk: int = 20_000
    singles: int = 1_000
    crowd: int = 5_000
    backlog: int = 300_000
    grown: int = 1_000_000
    probes: int = 250
    old: int = 100_000
    rest: float = 10.0
    bulk_seconds: float = 2.0
    backlog_seconds: float = 15.0
    drain_seconds: float = 2.5
    backlog_drain_seconds: float = 3.0
    latency_seconds: float = 2.5
    workflows: int = 1_000
    lone: int = 1_000
    fan: int = 10_000
    events: int = 10_000
    asleep: int = 10_000
    workflow_seconds: float = 15.0


QUICK = Sizes(
    bulk=3_000, singles=200, crowd=500, backlog=10_000, grown=10_000, probes=40, old=5_000, rest=4.0,
    bulk_seconds=1.0, backlog_seconds=3.0, drain_seconds=1.5, backlog_drain_seconds=1.5, latency_seconds=1.5,
    workflows=100, lone=100, fan=500, events=500, asleep=500, workflow_seconds=3.0,
)  # fmt: skip


@dataclass
class Candidate:
    key: str
    python: Path
    server: Postgres | Redis
    folder: Path
    sizes: Sizes
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[str, str] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    """The images that were made, and how many tasks are queued in each."""
    start_rate: float = 0.0
    held: Held | None = None
    """The transaction that is open all the time, in a database of its own."""

    @property
    def script(self) -> Path:
        name = self.key if self.key == "limit" else f"{self.key}_"
        return CONTENDERS / f"{name}.py"

    @property
    def name(self) -> str:
        return str(self.facts.get("name", self.key))

    def ask(self, verb: str, *, url: str, timeout: float = 240.0, **options: float | str) -> dict[str, Any]:
        words = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        environment = os.environ | {
            "BENCH_STORE": url,
            "BENCH_SOCKET": str(self.folder / "probe.sock"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if self.server.child is not None:
            environment["BENCH_SERVER"] = str(self.server.pid)
        command = [str(self.python), str(self.script), verb, *words]
        return _read(verb, *_spoken(command, environment, timeout))

    def on(self, image: str) -> str:
        """The address of a store that holds this image, anew."""
        if image and image not in self.kept:
            raise Unmeasured(self.reasons.get(f"image {image}", f"there is no image {image}"))
        return self.server.restore(self.key, image)

    def keep(self, image: str, queued: int) -> None:
        self.server.keep(self.key, image)
        self.kept[image] = queued

    def hold(self) -> None:
        """From now until the server ends."""
        assert isinstance(self.server, Postgres)
        self.held = self.server.hold(self.key, "prepared")

    def attempt(self, figure: str, measure: Callable[[], object]) -> bool:
        """Measure, or note why not: a contender that fails gets a dash, and the run goes on."""
        try:
            measure()
        except (Unmeasured, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            self.reasons[figure] = str(error).strip() or type(error).__name__
            return False
        return True


def _spoken(command: list[str], environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        except BaseException:
            # It ends its workers when it is told to; killed, it could not.
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    return child.returncode, out, err


def _read(verb: str, code: int, out: str, err: str) -> dict[str, Any]:
    if code:
        raise Unmeasured(f"{verb}: {err.strip()[-1200:]}")
    try:
        answer = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise Unmeasured(f"{verb} gave no answer: {out[-300:]}{err[-600:]}") from None
    if "lacking" in answer:
        raise Unmeasured(str(answer["lacking"]))
    return dict(answer)
