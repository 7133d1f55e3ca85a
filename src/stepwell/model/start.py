"""A run to be."""

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
    """What runs that are started by one call have in common: everything but what tells one from another."""

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
    """The version of its code that alone may run it."""
    on_failure: bytes | None = None
    """The terms of its failure handler, as the row carries them."""

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.at is not None

    @property
    def is_plain(self) -> bool:
        """Nothing has to be reckoned for its row: it waits for no time."""
        return (
            not self.is_delayed
            and self.expires is None
            and self.deadline is None
            and self.keep is None
            and self.on_failure is None
            and self.kind == "task"
        )


class Start(Struct, eq=False):
    """A run to be: everything its row needs, already encoded."""

    id: RunId
    input: bytes
    terms: Terms
    key: str | None = None
    digest: bytes | None = None
    """Of the name and the input, with a key."""
    limit_key: str | None = None
    """Runs of a queue with the same one are limited together."""
    unique_key: str | None = None
    """While a run with it is unfinished, a start with the same leads there."""
    debounce_key: str | None = None
    node: str | None = None
    """Which command of its parent it carries out: its end is told there."""

    @property
    def is_plain(self) -> bool:
        """Nothing has to be looked up or reckoned for its row, and nobody told of its end."""
        return self.node is None and self.is_plain_part

    @property
    def is_plain_part(self) -> bool:
        """Nothing has to be looked up or reckoned for its row."""
        return self.has_no_key and self.terms.is_plain

    @property
    def has_no_key(self) -> bool:
        return self.key is None and self.limit_key is None and self.unique_key is None and self.debounce_key is None


def plain_parts(starts: Sequence[Start]) -> list[Start]:
    """Those for whose rows nothing has to be looked up or reckoned. Of many, most have the same terms."""
    terms, plain, found = None, False, []
    for each in starts:
        if each.terms is not terms:
            terms = each.terms
            plain = terms.is_plain
        if plain and each.has_no_key:
            found.append(each)
    return found


def are_debounced(starts: Sequence[Start]) -> bool:
    """Whether these are: all of them, or none."""
    debounced = {each.debounce_key is not None for each in starts}
    if len(debounced) > 1:
        raise InvalidSetting("start_many", "debounce", "what is debounced is started apart from what is not")
    return debounced == {True}


def first_by_key(starts: Sequence[Start]) -> dict[str, Start]:
    """The first start of each key, to which the others with it lead; KeyConflict if they are not the same."""
    first: dict[str, Start] = {}
    for start in starts:
        if start.key is not None and first.setdefault(start.key, start).digest != start.digest:
            raise KeyConflict(start.key, first[start.key].id)
    return first
