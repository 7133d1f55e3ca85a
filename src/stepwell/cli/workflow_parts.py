"""The part of `stepwell show` that only a workflow has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.cli.history import plainly, row_of
from stepwell.cli.printing import json_text, local
from stepwell.operator.runs import WorkflowDetail


def plain_parts(parts: WorkflowDetail) -> dict[str, Any]:
    return {
        "published": parts.published,
        "events": parts.events,
        "history": [plainly(each) for each in parts.tail],
        "children": [{"id": each.id, "name": each.name, "state": each.state} for each in parts.children],
    }


def lines_of_parts(parts: WorkflowDetail) -> Iterator[str]:
    if parts.published is not None:
        yield f"published {json_text(parts.published)}"
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
