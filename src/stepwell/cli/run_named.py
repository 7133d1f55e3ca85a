"""The run that a command line names: by its id, by its key, or by the beginning of its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from stepwell.app import App
from stepwell.cli.printing import local, plain
from stepwell.client.client import Client
from stepwell.definitions.run import Run
from stepwell.model.errors import NotFound, UsageError
from stepwell.model.run import Glimpse

SHORTEST = 8
"""Hexadecimal digits that a shortened id must have; fewer are a key."""
SHOWN = 5
"""Runs that are listed if a shortened id fits several."""


@dataclass(eq=False)
class AmbiguousId(UsageError):
    """{beginning!r} is the beginning of more than one id: give more of it.{matches}"""

    beginning: str
    matches: str


async def run_named(app: App, text: str) -> Run[Any]:
    """A handle on the run that this text names. A key goes before the beginning of an id, which it may look like."""
    bounds = id_range(text)
    if bounds is None:
        return app.run(text)
    client = cast(Client, app.door)
    try:
        return app.run(await client.id_by_key(text))
    except NotFound:
        pass
    found = await client.glimpses(*bounds, limit=SHOWN + 1)
    if not found:
        raise NotFound("key or beginning of an id", text)
    if len(found) > 1:
        raise AmbiguousId(text, _listed(found))
    return app.run(found[0].id)


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


def _listed(found: list[Glimpse]) -> str:
    lines = [f"  {each.id}  {plain(each.name)}  {each.state}  {local(each.created_at)}" for each in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append("  … and more")
    return "\n" + "\n".join(lines)
