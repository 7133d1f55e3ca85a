"""Loads the SQL of `sql/*.sql`, once per schema name.

A file holds statements headed `-- name: verb_nouns`; parameters are spelled `:name` and become `$1, $2, …` in order of
first use. The schema is written `stepwell.` and replaced by the configured one. Nothing else is ever substituted:
values are bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from stepwell.model.errors import InvalidSetting

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MOVES = re.compile(r"^-- moves: (.*)$", re.MULTILINE)
_TOKEN = re.compile(
    r"(?P<skip>'(?:[^']|'')*'|--[^\n]*|::)"  # text, comments and casts hold no parameters
    r"|(?<![\w:]):(?P<name>[a-z_][a-z0-9_]*)"
)
# Words that Postgres parses as something else where a schema's name should be.
_RESERVED = frozenset(
    """all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze
    from full grant group having ilike in information_schema initially inner intersect into is isnull join lateral
    leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric system_user table
    tablesample then to trailing true union unique user using variadic verbose when where window with""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement of SQL."""

    name: str
    sql: str
    params: tuple[str, ...]
    moves: str | None

    def bind(self, values: dict[str, Any]) -> list[Any]:
        """Return the values in the statement's order. A missing or surplus value is a bug of ours."""
        if len(values) == len(self.params):
            try:
                return [values[name] for name in self.params]
            except KeyError:
                pass
        raise TypeError(f"{self.name} takes {', '.join(self.params)}; got {', '.join(values)}")


Statements = dict[str, Statement]


@lru_cache(maxsize=8)
def load(schema: str) -> Statements:
    """Return every statement of the package, for one schema."""
    loaded: Statements = {}
    for file in sorted(files("stepwell.store").joinpath("sql").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".sql") and file.name != "schema.sql":
            for statement in parse(in_schema(file.read_text(encoding="utf-8"), schema)):
                if statement.name in loaded:
                    raise ValueError(f"two statements are called {statement.name}")
                loaded[statement.name] = statement
    return loaded


def parse(text: str) -> list[Statement]:
    """Split a file into its statements."""
    parts = _NAME.split(text)[1:]
    return [_statement(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def in_schema(text: str, schema: str) -> str:
    """Replace `stepwell.` by the schema's name. It is safe because that name can hold no quote."""
    return re.sub(r"\bstepwell\.", f"{checked_schema(schema)}.", text)


def checked_schema(schema: str) -> str:
    """Return the schema's name, or raise InvalidSetting if it is not a valid one."""
    if not _SCHEMA.fullmatch(schema):
        raise InvalidSetting("schema", schema, "1 to 40 of a-z, 0-9 and _, not beginning with a digit")
    if schema in _RESERVED or schema.startswith("pg_"):
        raise InvalidSetting("schema", schema, "this name is reserved by Postgres: choose another")
    return schema


def _statement(name: str, body: str) -> Statement:
    params: list[str] = []

    def numbered(token: re.Match[str]) -> str:
        if token["skip"]:
            return token[0]
        if token["name"] not in params:
            params.append(token["name"])
        return f"${params.index(token['name']) + 1}"

    moves = _MOVES.search(body)
    sql = _TOKEN.sub(numbered, body).strip().rstrip(";")
    return Statement(name, sql, tuple(params), moves[1] if moves else None)
