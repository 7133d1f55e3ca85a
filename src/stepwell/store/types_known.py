"""A process-wide cache of the types that the driver looks up on the server.

The driver looks up the array types of a statement for each new connection, by a query that takes the server longer to
plan than most of our statements take altogether: a worker spent an eighth of a second on it at its start. But
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
"""Oids below this are Postgres's own, and always the same."""
_OURS = {1000, 1001, 1005, 1007, 1009, 1016, 1022, 1185, 1187, 2951, 3807}
"""Arrays of bool, bytea, int2, int4, text, int8, float8, timestamptz, interval, uuid and jsonb."""
_ASKED = SimpleNamespace(name="asked before")
"""Placeholder for the driver's prepared statement, when the answer comes from the cache."""

_known: dict[int, list[Any]] = {}
"""The row of each array type and that of its element type, by the oid of the array, as the driver has read them."""


class Knowing(_Driver):
    """A connection that reads types from the cache."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[list[Any], Any]:
        """Look up types, by the driver's own method of this name, and cache its answers. If the driver renames the
        method, nothing is cached any more."""
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
