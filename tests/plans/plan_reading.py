"""What EXPLAIN says of a statement, reduced to what the plan tests judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg

from stepwell.store.statements import Statement

_PART = re.compile(r"_(\d{8}|default)(?=_|$)")
_SCANS = re.compile(r"(Seq|Index|Index Only|Bitmap Heap|Tid|Tid Range|Sample) Scan")


@dataclass(frozen=True, slots=True)
class Scan:
    """One node that reads a table; of a partition, under the name of its parent."""

    table: str
    by: str
    """The index, or the kind of scan where there is none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One statement, executed once."""

    rows: int
    """What it gave back or, where it gives nothing back, moved."""
    buffers: int
    tuples: int
    """The rows that passed through all nodes together: what a loop in a loop multiplies."""
    wal_records: int
    milliseconds: float
    cost: float
    scans: frozenset[Scan]
    parts: dict[str, int]
    """The buffers of each CTE."""


class Session:
    """A connection that prepares the engine's statements and can tell their plans."""

    def __init__(self, connection: asyncpg.Connection[Any], statements: dict[str, Statement]) -> None:
        self.connection = connection
        self._statements = statements
        self._prepared: set[str] = set()

    async def explain(self, name: str, /, **values: Any) -> Reading:
        """Execute the statement as a prepared one, read its plan, and take back what it did."""
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            return await self.explain_here(name, **values)
        finally:
            await transaction.rollback()

    async def explain_here(self, name: str, /, **values: Any) -> Reading:
        """The same in whatever transaction is open."""
        if name not in self._prepared:
            await self.connection.execute(f"prepare {name} as {self._statements[name].sql}")
            self._prepared.add(name)
        given = await self._literals(name, values)
        explain = f"explain (analyze, buffers, wal, timing off, format json) execute {name}"
        told = await self.connection.fetchval(explain + (f"({given})" if given else ""))
        return read(json.loads(told)[0])

    async def _literals(self, name: str, values: dict[str, Any]) -> str:
        # EXPLAIN EXECUTE takes no bound parameters.
        statement = self._statements[name]
        if not statement.params:
            return ""
        types = (await self.connection.prepare(statement.sql)).get_parameters()
        quoted = ", ".join(f"quote_nullable(${n}::{type_.name}::text)" for n, type_ in enumerate(types, 1))
        return ", ".join(await self.connection.fetchrow(f"select {quoted}", *statement.bind(values)))


def read(told: dict[str, Any]) -> Reading:
    top = told["Plan"]
    nodes = list(_nodes(top))
    scanned = {node["CTE Name"] for node in nodes if "CTE Name" in node}
    parts = {node["Subplan Name"]: node for node in nodes if node.get("Subplan Name", "").startswith("CTE ")}
    # A writing CTE that nobody reads runs after the top node has ended, and is not counted in it.
    apart = [node for name, node in parts.items() if name.removeprefix("CTE ") not in scanned]
    everything = [top, *apart]
    return Reading(
        rows=int(top["Actual Rows"]),
        buffers=sum(map(_buffers, everything)),
        tuples=sum(map(_tuples, nodes)),
        wal_records=sum(node.get("WAL Records", 0) for node in everything),
        milliseconds=told["Execution Time"],
        cost=top["Total Cost"],
        scans=frozenset(_scan(node) for node in nodes if _SCANS.fullmatch(node["Node Type"])),
        parts={name.removeprefix("CTE "): _buffers(node) for name, node in parts.items()},
    )


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def _tuples(node: dict[str, Any]) -> int:
    return int((node["Actual Rows"] + node.get("Rows Removed by Join Filter", 0)) * node["Actual Loops"])


def _scan(node: dict[str, Any]) -> Scan:
    by = node.get("Index Name", node["Node Type"])
    return Scan(_PART.sub("", node["Relation Name"]), _PART.sub("", by))
