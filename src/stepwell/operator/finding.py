"""The run that a text names: by its id, by its key, or by the beginning of its id."""

from __future__ import annotations

from uuid import UUID

from stepwell.model.errors import NotFound
from stepwell.operator.errors import SHOWN, AmbiguousId
from stepwell.operator.parts import ClientVerbs

SHORTEST = 8
"""Hexadecimal digits that a shortened id must have; fewer are a key."""


async def find(client: ClientVerbs, run: UUID | str) -> UUID:
    """The id of the run that this text names. A key goes before the beginning of an id, which it may look like.

    A whole id is not looked up: the verb that follows does so.
    """
    if isinstance(run, UUID):
        return run
    try:
        return UUID(run)
    except ValueError:
        pass
    bounds = id_range(run)
    try:
        return await client.id_by_key(run)
    except NotFound:
        if bounds is None:
            raise
    found = await client.glimpses(*bounds, limit=SHOWN + 1)
    if not found:
        raise NotFound("key or beginning of an id", run)
    if len(found) > 1:
        raise AmbiguousId(run, found)
    return found[0].id


def id_range(text: str) -> tuple[UUID, UUID] | None:
    """The first and the last id that begin like this; None if no id does, or it is a whole one."""
    shortened = text.removesuffix("…").removesuffix("...").lower()
    digits = shortened.replace("-", "")
    if not SHORTEST <= len(digits) < 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if shortened not in (digits, str(first)[: len(shortened)]):
        return None
    return first, last
