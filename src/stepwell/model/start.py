"""Requests to start runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from msgspec import Struct

from stepwell.model.errors import InvalidSetting, KeyConflict
from stepwell.model.ids import RunId


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The common part of runs that one call starts: everything but id, input and keys."""

    name: str
    queue: str = "default"
    priority: int = 50
    retry: bytes = b"{}"
    tags: bytes | None = None
    timeout: timedelta | None = None
    delay: timedelta | None = None
    at: datetime | None = None
    expires: timedelta | None = None
    deadline: timedelta | None = None
    per_key: int | None = None
    keep: str | None = None
    parent_id: UUID | None = None
    root_id: UUID | None = None
    kind: str = "task"
    pin: str | None = None
    """The only version of its code that may run it."""
    on_failure: bytes | None = None
    """The terms of its failure handler, encoded as on the row."""

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.at is not None

    @property
    def is_plain(self) -> bool:
        """True if the row needs no computed time and no special column."""
        return (
            not self.is_delayed
            and self.expires is None
            and self.deadline is None
            and self.keep is None
            and self.on_failure is None
            and self.kind == "task"
        )


class Start(Struct, eq=False):
    """A request to start a run: everything its row needs, already encoded."""

    id: RunId
    input: bytes
    terms: Terms
    key: str | None = None
    digest: bytes | None = None
    """The digest of name and input, if the start has a key."""
    limit_key: str | None = None
    """The key of a concurrency limit that runs of the same queue share."""
    unique_key: str | None = None
    """The unique key: while a run with it is unfinished, a start with the same key returns that run."""
    debounce_key: str | None = None
    node: str | None = None
    """The command of its parent that it carries out: the parent is notified of its end."""

    @property
    def is_plain(self) -> bool:
        """True if the row needs no lookup and no computed time, and no parent is notified of its end."""
        return self.node is None and self.is_plain_part

    @property
    def is_plain_part(self) -> bool:
        """True if the row needs no lookup and no computed time."""
        return self.has_no_key and self.terms.is_plain

    @property
    def has_no_key(self) -> bool:
        return self.key is None and self.limit_key is None and self.unique_key is None and self.debounce_key is None


def plain_parts(starts: Sequence[Start]) -> list[Start]:
    """Select the starts whose rows need no lookup and no computed time. Check shared terms only once."""
    terms, plain, found = None, False, []
    for each in starts:
        if each.terms is not terms:
            terms = each.terms
            plain = terms.is_plain
        if plain and each.has_no_key:
            found.append(each)
    return found


def are_debounced(starts: Sequence[Start]) -> bool:
    """Tell whether all starts are debounced. Raise InvalidSetting if only some are."""
    debounced = {each.debounce_key is not None for each in starts}
    if len(debounced) > 1:
        reason = "debounced and other starts cannot be mixed in one call: start them by separate calls"
        raise InvalidSetting("start_many", "debounce", reason)
    return debounced == {True}


def first_by_key(starts: Sequence[Start]) -> dict[str, Start]:
    """Return the first start of each key; later starts with the key lead to its run. KeyConflict if they differ."""
    first: dict[str, Start] = {}
    for start in starts:
        if start.key is not None and first.setdefault(start.key, start).digest != start.digest:
            raise KeyConflict(start.key, first[start.key].id)
    return first
