"""What `stepwell show` says of a workflow, beside what it says of any run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepwell.cli.history import plainly, rollbacks_of, row_of
from stepwell.cli.printing import json_text, local
from stepwell.definitions.run import Run
from stepwell.model.events import HistoryEvent
from stepwell.model.run import RunInfo

TAIL = 10
"""Events that are shown, the last ones."""
CHILDREN = 20
"""Children that are shown, the last ones."""


@dataclass(frozen=True, slots=True)
class Parts:
    state: Any
    """What it last published."""
    events: int
    tail: list[HistoryEvent]
    rollbacks: frozenset[int]
    """The events of compensations."""
    started: int
    children: list[RunInfo]


async def parts_of(run: Run[Any]) -> Parts:
    events, children = await run.history(), await run.children()
    shown = [await child.info() for child in children[-CHILDREN:]]
    return Parts(await run.state(), len(events), events[-TAIL:], rollbacks_of(events), len(children), shown)


def plain_parts(parts: Parts) -> dict[str, Any]:
    return {
        "published": parts.state,
        "events": parts.events,
        "history": [plainly(each) for each in parts.tail],
        "children": [{"id": each.id, "name": each.name, "state": each.state} for each in parts.children],
    }


def lines_of_parts(parts: Parts) -> Iterator[str]:
    if parts.state is not None:
        yield f"published {json_text(parts.state)}"
    if parts.children:
        more = f", the last {len(parts.children)} of {parts.started:,}" if parts.started > len(parts.children) else ""
        yield ""
        yield f"children{more}"
        yield from (f"  {each.id} {each.name} {each.state.value}" for each in parts.children)
    if parts.tail:
        more = f", the last {len(parts.tail)} of {parts.events:,} events" if parts.events > len(parts.tail) else ""
        yield ""
        yield f"history{more}"
        for event in parts.tail:
            number, _, type, _, what, details = row_of(event, parts.rollbacks)
            yield f"  {number:>4} {local(event.at)} {type} {what} {details}".rstrip()
