"""Filters of runs, checked: what lists and bulk verbs take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from stepwell.definitions.options import checked_mapping
from stepwell.model.errors import InvalidSetting
from stepwell.model.run import Filter, Kind
from stepwell.model.states import State

States = State | str | Sequence[State | str] | None


def filter_of(
    *,
    state: States = None,
    name: str | None = None,
    queue: str | None = None,
    kind: Kind | None = None,
    tags: Mapping[str, Any] | None = None,
    error: str | None = None,
    since: datetime | None = None,
    blocked: bool = False,
) -> Filter:
    """The filter of these values; InvalidSetting for a state or a tag that there cannot be."""
    tagged = None if tags is None else dict(checked_mapping("tags", tags))
    return Filter(_states(state), name, queue, kind, tagged, error, since, blocked)


def page_end(after: UUID | str | None) -> UUID | None:
    """The run behind which a page begins."""
    try:
        return UUID(after) if isinstance(after, str) else after
    except ValueError:
        raise InvalidSetting("after", after, "the id of a run, as in page.next") from None


def _states(given: States) -> list[State] | None:
    if given is None:
        return None
    try:
        return [State(each) for each in ([given] if isinstance(given, str) else given)]
    except (ValueError, TypeError) as error:
        raise InvalidSetting("state", given, f"one of {', '.join(State)}") from error
