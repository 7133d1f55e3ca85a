"""A user's connection: only our named statements are executed on it, in the user's transaction.

Every value is sent as text and cast by the server. How a driver converts `jsonb`, arrays or intervals is the user's
setting, and a setting of ours would stay behind on the connection.
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
    """A statement in the form that a driver takes."""

    sql: str
    types: tuple[str, ...]
    """The type to which each value is cast; for an array, the type of its items."""


class Borrowed(ABC):
    """Base of the adapters for drivers; implements `Tx`. The driver's errors are raised as they are, since it is the
    user's transaction that failed."""

    place: ClassVar[str]
    """The driver's spelling of a parameter, with `{}` for its number."""
    blocks: ClassVar[bool]
    """True if the driver blocks its thread while the server works."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    @abstractmethod
    async def require_transaction(self) -> None:
        """Raise WrongUse if the next statement would commit by itself."""

    @abstractmethod
    async def driver_connection(self) -> object | None:
        """Return the driver's own connection, which lives as long as its session; None if there is none yet."""

    @abstractmethod
    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]: ...

    async def rows(self, name: str, /, **values: Any) -> list[Any]:
        """Execute a named statement, and return its rows by column name."""
        statement = self._statements[name]
        form = spoken(statement.sql, self.place)
        texts = [written(value, kind) for value, kind in zip(statement.bind(values), form.types, strict=True)]
        return [_read(row) for row in await self._fetch(form.sql, texts)]


@lru_cache(maxsize=128)
def spoken(sql: str, place: str) -> Spoken:
    """Convert a statement to the driver's spelling of parameters, with a cast from text for each."""
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
    """Return a value in the text form that Postgres reads, whatever its session's settings are."""
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


# Columns that drivers return in a type of their own, and how to convert them.
_FORMS: dict[str, Callable[[Any], Any]] = {"id": _uuid, "run_id": _uuid, "digest": bytes}


def _read(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _FORMS[name](value) if name in _FORMS else value for name, value in row.items()}


def by_name(description: Sequence[Any] | None, found: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Convert the rows of a DB-API cursor to dicts."""
    names = [column[0] for column in description or ()]
    return [dict(zip(names, row, strict=True)) for row in found]


def numbered(texts: Sequence[str | None]) -> dict[str, str | None]:
    """Return the parameters by name, for drivers that take them so: one parameter may be used more than once."""
    return {f"p{number}": text for number, text in enumerate(texts, 1)}
