"""A connection of the user's: named statements are spoken on it, in the user's transaction, and nothing else.

Every value travels as text, and the server casts it: what a driver makes of `jsonb`, of arrays or of intervals is the
user's to set, and what we would set would be left behind.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar
from uuid import UUID

from stepwell.store.statements import Statements

_PLACE = re.compile(r"\$(?P<number>\d+)(?:::(?P<type>\w+))?|%")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A statement as a driver takes it."""

    sql: str
    types: tuple[str, ...]
    """What each value is cast to in it: one that is an array goes by the type of its items."""


class Borrowed(ABC):
    """Fulfils `Tx`. What the driver raises is raised: it is the user's transaction that has failed."""

    place: ClassVar[str]
    """How the driver spells a parameter, `{}` standing for its number."""
    blocks: ClassVar[bool]
    """Whether it holds up its thread while the server works."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    @abstractmethod
    async def require_transaction(self) -> None:
        """WrongUse if the next statement would commit by itself."""

    @abstractmethod
    async def driver_connection(self) -> object | None:
        """The driver's own connection, which lives as long as its session; None if there is none yet."""

    @abstractmethod
    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]: ...

    async def rows(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        said = spoken(statement.sql, self.place)
        texts = [written(value, kind) for value, kind in zip(statement.bind(values), said.types, strict=True)]
        return [_read(row) for row in await self._fetch(said.sql, texts)]


@lru_cache(maxsize=128)
def spoken(sql: str, place: str) -> Spoken:
    types: dict[int, str] = {}

    def placed(found: re.Match[str]) -> str:
        if found[0] == "%":
            return "%%" if "%" in place else "%"
        number, cast = int(found["number"]), found["type"]
        types.setdefault(number, cast or "text")
        return f"cast({place.format(number)} as text)" + (f"::{cast}" if cast else "")

    text = _PLACE.sub(placed, sql)
    return Spoken(text, tuple(types[number] for number in sorted(types)))


def written(value: Any, kind: str) -> str | None:
    """A value as Postgres reads it, whatever its session is set to."""
    match value:
        case None:
            return None
        case list() | tuple():
            return f"{{{','.join(_quoted(written(each, kind)) for each in value)}}}"
        case bytes() if kind == "bytea":
            return f"\\x{value.hex()}"
        case bytes():
            return value.decode()
        case bool():
            return "true" if value else "false"
        case timedelta():
            return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _uuid(value: Any) -> UUID | None:
    return value if value is None or isinstance(value, UUID) else UUID(str(value))


# What drivers give in a form of their own, by the name of its column.
_FORMS: dict[str, Callable[[Any], Any]] = {"id": _uuid, "run_id": _uuid, "digest": bytes}


def _read(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _FORMS[name](value) if name in _FORMS else value for name, value in row.items()}


def by_name(description: Sequence[Any] | None, found: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of a DB-API cursor."""
    names = [column[0] for column in description or ()]
    return [dict(zip(names, row, strict=True)) for row in found]


def numbered(texts: Sequence[str | None]) -> dict[str, str | None]:
    """Values for drivers that take them by name: one may be used more than once."""
    return {f"p{number}": text for number, text in enumerate(texts, 1)}
