"""Work that stands still: blocked workflows, names that nobody serves, signals that nobody takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from stepwell.engine import workers
from stepwell.model.pins import pin_of, plain_name
from stepwell.model.wording import age, among, at, near
from stepwell.model.worker import WorkerInfo
from stepwell.model.workflow_causes import untaken_in_words
from stepwell.operator.findings import DoctorFinding
from stepwell.store.pool import Database

MOST = 10_000
"""The limit up to which blocked workflows are counted."""
EACH = 100
"""Pending runs at the front of each line that are looked at."""
NEWEST = 100_000
"""Live runs that are looked at for signals that nobody takes."""
LISTED = 50
"""Workflows with such signals, among which a likely typing error is looked for."""
LONG = 60.0
"""Seconds after which a run that no worker knows is more than a deploy under way."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Workflows of one name whose code does not fit their history."""

    name: str
    runs: int
    since: datetime | None
    """None: stopped by a worker of a version that did not note it."""
    id: UUID


@dataclass(frozen=True, slots=True)
class Front:
    """Pending runs of one name at the front of one queue."""

    queue: str
    name: str
    """The name by which they are claimed."""
    runs: int
    waited: float
    """Seconds since the oldest of them was started."""
    id: UUID


@dataclass(frozen=True, slots=True)
class Untaken:
    """A workflow that waits for signals, and those that came and were not taken."""

    id: UUID
    name: str
    signals: Sequence[str]
    untaken: Mapping[str, int]


async def look(database: Database) -> list[DoctorFinding]:
    blocked = [Blocked(**dict(row)) for row in await database.rows("blocked_workflows", most=MOST)]
    fronts = [Front(**dict(row)) for row in await database.rows("fronts", each=EACH)]
    live = [each for each in await workers.seen(database) if each.state == "live"]
    signals = await database.rows("untaken_signals", most=NEWEST, limit=LISTED)
    untaken = [_untaken(row["id"], row["name"], row["waits_for"]) for row in signals]
    return [of_blocked(blocked), of_names(fronts, live), of_signals(untaken, signals[0]["runs"] if signals else 0)]


def _untaken(run_id: UUID, name: str, waits_for: bytes) -> Untaken:
    told = msgspec.json.decode(waits_for)
    return Untaken(run_id, name, told["signals"], told["untaken"])


def of_blocked(found: Sequence[Blocked]) -> DoctorFinding:
    if not found:
        return DoctorFinding("blocked", "good", "the code of every workflow fits its history")
    count = sum(each.runs for each in found)
    many = f"at least {count:,}" if count >= MOST else f"{count:,}"
    moments = [each.since for each in found if each.since is not None]
    since = f" since {at(min(moments))}" if moments else ""
    names = among([f"{each.name} ({each.runs:,})" for each in found])
    says = (
        f"{many} workflows wait for code that fits their history{since}: {names}. `stepwell explain {found[0].id}` "
        "shows where; bring the old code back, or guard the new with workflow.patched"
    )
    return DoctorFinding(
        "blocked", "bad", says, {"count": count, "names": [each.name for each in found], "run": found[0].id}
    )


def of_names(fronts: Sequence[Front], live: Sequence[WorkerInfo]) -> DoctorFinding:
    if not live:
        return DoctorFinding("names", "good", "no worker is alive to ask for the names that it knows")
    unserved = [each for each in fronts if not _is_served(each, live)]
    if not unserved:
        return DoctorFinding("names", "good", "live workers know the name of whatever is next in line")
    unserved.sort(key=lambda each: -each.waited)
    names = among([f"{plain_name(each.name)} in queue {each.queue} ({_number(each.runs)})" for each in unserved])
    waited = unserved[0].waited
    says = (
        f"no live worker takes {names}; the oldest was started {age(waited)} ago. Deploy the code, or cancel them: "
        f"`stepwell explain {unserved[0].id}`"
    )
    facts = {"names": [plain_name(each.name) for each in unserved], "waited": waited, "run": unserved[0].id}
    return DoctorFinding("names", "bad" if waited > LONG else "look", says, facts)


def _is_served(front: Front, live: Sequence[WorkerInfo]) -> bool:
    name, pin = plain_name(front.name), pin_of(front.name)
    return any(each.serves(front.queue) and each.knows(name, pin) for each in live)


def _number(count: int) -> str:
    return f"{count:,}" if count < EACH else f"at least {count:,}"


def of_signals(found: Sequence[Untaken], in_all: int) -> DoctorFinding:
    if not found:
        return DoctorFinding("signals", "good", "no workflow that waits for a signal was sent another one")
    one = next((each for each in found if any(near(name, each.signals) for name in each.untaken)), found[0])
    says = (
        f"{in_all:,} workflows wait for a signal, and others arrived that they have not taken. {one.name} {one.id}, "
        f"for one: {untaken_in_words(one.untaken, one.signals)}"
    )
    return DoctorFinding("signals", "look", says, {"count": in_all, "run": one.id})
