"""What is measured of those who have workflows: their steps, beside the limit; and what only Stepwell is asked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks.candidate import Candidate
from benchmarks.servers import Postgres

PLAYERS = ("stepwell", "limit", "dbos", "absurd")
STEPS = 10
CHAIN = 40
# How many steps the bare rows of the limit are grouped by.
GROUP = 100
PARKED = "parked"
# Where a worker leaves rows, whatever it does.
OF_WORKERS = {"workers", "worker_samples", "leaders"}
TABLES = """
select c.relname from pg_class c
 where c.relnamespace = 'stepwell'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
"""

Steps = Iterator[tuple[str, Callable[[], None]]]


def prepare(candidate: Candidate) -> None:
    """The histories that are to be told again, one twice as long as the other."""

    def park() -> None:
        url, events = candidate.on("prepared"), candidate.sizes.events
        for length in (events, 2 * events):
            candidate.ask("park", url=url, length=length, timeout=900)
        candidate.keep(PARKED, 0)

    if candidate.key == "stepwell":
        candidate.attempt(f"image {PARKED}", park)


def figures(candidate: Candidate) -> Steps:
    """One round. What will be divided by one another is measured as close together as can be: disks have moods."""
    match candidate.key:
        case "stepwell":
            yield from _of_stepwell(candidate)
        case "limit":
            yield "lone", lambda: _bare(candidate, "lone", candidate.sizes.lone, 1)
            yield "steps", lambda: _bare(candidate, "steps", candidate.sizes.workflows * STEPS, GROUP)
        case _:
            yield "lone", lambda: _lone(candidate)
            yield "steps", lambda: _steps(candidate, "steps")


def _of_stepwell(candidate: Candidate) -> Steps:
    """After its drain of plain tasks, and before the limit's turn."""
    events = candidate.sizes.events
    yield "fan", lambda: _fan(candidate)
    yield "asleep", lambda: _asleep(candidate)
    yield "replay", lambda: _replay(candidate, "replay", events)
    yield "replay2", lambda: _replay(candidate, "replay2", 2 * events)
    yield "chain", lambda: _chain(candidate)
    yield "tasks", lambda: _steps(candidate, "tasks")
    yield "steps", lambda: _steps(candidate, "steps")
    yield "lone", lambda: _lone(candidate)


def _bare(candidate: Candidate, figure: str, count: int, group: int) -> None:
    """Steps a second where they are grouped, milliseconds of one where they are not."""
    took = candidate.ask("bare", url=candidate.on("prepared"), count=count, group=group)["seconds"]
    candidate.figures[figure].append(count / took if group > 1 else took / count * 1000)


def _steps(candidate: Candidate, shape: str) -> None:
    sizes = candidate.sizes
    told = candidate.ask(
        "steps", url=candidate.on("prepared"), shape=shape, count=sizes.workflows, length=STEPS,
        most=sizes.workflow_seconds,
    )  # fmt: skip
    candidate.figures[shape].append(told["rate"])


def _lone(candidate: Candidate) -> None:
    length = candidate.sizes.lone
    told = candidate.ask("lone", url=candidate.on("prepared"), length=length)
    candidate.figures["lone"].append(told["seconds"] / length * 1000)


def _chain(candidate: Candidate) -> None:
    told = candidate.ask("whole", url=candidate.on("prepared"), shape="tasks", length=CHAIN, times=5)
    candidate.figures["chain"].append(statistics.median(told["seconds"]))


def _fan(candidate: Candidate) -> None:
    width = candidate.sizes.fan
    told = candidate.ask("whole", url=candidate.on("prepared"), shape="fan", length=width, times=1)
    candidate.figures["fan"].append(width / told["seconds"][0])


def _replay(candidate: Candidate, figure: str, events: int) -> None:
    """A tenth of a second is soon disturbed: the middle of three."""
    took = [candidate.ask("wake", url=candidate.on(PARKED), length=events)["seconds"] for _ in range(3)]
    candidate.figures[figure].append(statistics.median(took))


def _asleep(candidate: Candidate) -> None:
    server, count = candidate.server, candidate.sizes.asleep
    assert isinstance(server, Postgres)
    url = candidate.on("prepared")
    before = _rows(server)
    told = candidate.ask("asleep", url=url, count=count, timeout=900)
    more = {table: rows - before[table] for table, rows in _rows(server).items() if table not in OF_WORKERS}
    candidate.figures["asleep few"].append(told["few"] / 1e6)
    candidate.figures["asleep all"].append(told["all"] / 1e6)
    candidate.figures["asleep runs"].append(more.pop("runs") / count)
    candidate.figures["asleep events"].append(more.pop("events") / count)
    candidate.figures["asleep rows"].append(sum(more.values()) / count)


def _rows(server: Postgres) -> dict[str, int]:
    """Of every table: whatever a sleeper leaves, wherever, is seen."""
    tables = server.sql(TABLES).splitlines()
    counts = server.sql(*(f"select count(*) from stepwell.{table}" for table in tables)).splitlines()
    return dict(zip(tables, map(int, counts), strict=True))
