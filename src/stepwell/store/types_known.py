"""Types that the driver asks the server about: once in a process, and not once for every connection.

For each new connection it looks up the arrays that a statement takes, as they come, by a query that takes the server
longer to plan than most of our statements take altogether: a worker that began spent an eighth of a second on it. But
Postgres's own types are the same in every database.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    _Driver = asyncpg.Connection[asyncpg.Record]
else:
    _Driver = asyncpg.Connection

_BUILT_IN = 16_384
"""Below it, an oid is one of Postgres's own, and always the same."""
_OURS = {1000, 1001, 1005, 1007, 1009, 1016, 1022, 1185, 1187, 2951, 3807}
"""Arrays of bool, bytea, int2, int4, text, int8, float8, timestamptz, interval, uuid and jsonb."""
_ASKED = SimpleNamespace(name="asked before")
"""In place of the statement by which it would have been asked."""

_known: dict[int, list[Any]] = {}
"""By the oid of an array: its row and that of its elements, as the driver has read them."""


class Knowing(_Driver):
    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[list[Any], Any]:
        """The driver's own, whose answers are kept. Should it have another name one day, nothing is kept any more."""
        oids = set(typeoids)
        if not oids <= _known.keys():
            ask: Any = getattr(super(), "_introspect_types")  # noqa: B009  # unknown to its types
            found, by = await ask(list(oids | _OURS if max(oids) < _BUILT_IN else oids), timeout)
            _keep(found)
            return found, by
        return [row for oid in oids for row in _known[oid]], _ASKED


def _keep(found: list[Any]) -> None:
    rows = {row["oid"]: row for row in found}
    for oid, row in rows.items():
        if oid < _BUILT_IN and row["elemtype"] in rows:
            _known[oid] = [rows[row["elemtype"]], row]
