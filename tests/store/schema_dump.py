"""The schema as text, from the catalog: the same on every Postgres from 13 on, whatever pg_dump is there.

The partitions of single days are left out: they come and go.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg

import stepwell

Connection = Any  # the driver's class is generic in its stubs only

SCHEMA = Path(stepwell.__file__).parent / "store" / "sql" / "schema.sql"
HEAD = "-- What the migrations make. Written by a test: STEPWELL_WRITE_SCHEMA=1 ./dev test tests/store/test_schema.py\n"

RELATIONS = """
select c.oid, c.relname as name, c.relkind::text as kind, c.relispartition as is_part, c.relpersistence::text as kept,
       pg_get_partkeydef(c.oid) as key, pg_get_expr(c.relpartbound, c.oid) as bound,
       (select p.inhparent::regclass::text from pg_inherits p where p.inhrelid = c.oid) as parent,
       array(select unnest(c.reloptions) order by 1) as options
  from pg_class c
 where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'p', 'v', 'S') and c.relname !~ '_[0-9]{8}$'
 order by c.relkind = 'v', c.relname
"""
COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as is_needed,
       pg_get_expr(d.adbin, d.adrelid) as fallback,
       (select quote_ident(l.collname) from pg_collation l
         where l.oid = a.attcollation and l.collname <> 'default') as order_by
  from pg_attribute a
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
 order by a.attnum
"""
CONSTRAINTS = """
select quote_ident(conname) as name, pg_get_constraintdef(oid) as rule
  from pg_constraint
 where conrelid = $1 and contype not in ('n', 't')
 order by contype <> 'p', conname
"""
INDEXES = """
select pg_get_indexdef(i.indexrelid) as made
  from pg_index i
 where i.indrelid = $1 and not exists (select from pg_constraint k where k.conindid = i.indexrelid)
 order by i.indexrelid::regclass::text
"""
DOMAINS = """
select format('create domain %s as %s constraint %I %s;', format_type(t.oid, null), format_type(t.typbasetype, null),
              c.conname, pg_get_constraintdef(c.oid)) as made
  from pg_type t
  join pg_constraint c on c.contypid = t.oid
 where t.typnamespace = $1::regnamespace and t.typtype = 'd' and c.contype = 'c'
 order by t.typname
"""
TRIGGERS = """
select pg_get_triggerdef(oid) as made from pg_trigger where tgrelid = $1 and not tgisinternal order by tgname
"""
FUNCTIONS = r"""
-- Before 14 a procedure's arguments were not said to be IN.
select regexp_replace(pg_get_functiondef(oid), '([(,] ?)IN (?=[a-z_]+ )', '\1', 'g') as made
  from pg_proc where pronamespace = $1::regnamespace order by proname, pg_get_function_arguments(oid)
"""


async def schema_dump(connection: Connection, schema: str = "stepwell") -> str:
    """Every domain, table, view, index, trigger and function of the schema."""
    await connection.execute("set search_path to pg_catalog")
    relations = await connection.fetch(RELATIONS, schema)
    names = [each["name"] for each in relations]
    parts = ["\n".join(row["made"] for row in await connection.fetch(DOMAINS, schema))]
    parts += [await _relation(connection, each, schema, names) for each in relations]
    parts += [f"{_tidy(row['made'])};" for row in await connection.fetch(FUNCTIONS, schema)]
    return HEAD + "\n" + "\n\n".join(parts) + "\n"


async def _relation(connection: Connection, it: asyncpg.Record, schema: str, names: list[str]) -> str:
    name = f"{schema}.{it['name']}"
    if it["kind"] == "v":
        made = await connection.fetchval("select pg_get_viewdef($1::oid)", it["oid"])
        # Until 15 a view names the table of every column, even where there is only one.
        return f"create view {name} as\n" + re.sub(rf"(?<![.\w])({'|'.join(names)})\.(?=\w)", "", _tidy(made))
    if it["kind"] == "S":
        return f"create sequence {name};"
    if it["is_part"]:
        return f"create table {name} partition of {it['parent']} {it['bound'].lower()};"
    lines = [_column(row) for row in await connection.fetch(COLUMNS, it["oid"])]
    rules = await connection.fetch(CONSTRAINTS, it["oid"])
    lines += [f"    constraint {row['name']} {row['rule']}" for row in rules]
    ending = f" partition by {it['key']}" if it["key"] else ""
    ending += f" with ({', '.join(it['options'])})" if it["options"] else ""
    unlogged = "unlogged " if it["kept"] == "u" else ""
    table = f"create {unlogged}table {name} (\n" + ",\n".join(lines) + f"\n){ending};"
    made = [row["made"] for kind in (INDEXES, TRIGGERS) for row in await connection.fetch(kind, it["oid"])]
    return "\n".join([table, *(f"{each};" for each in made)])


def _column(row: asyncpg.Record) -> str:
    words = [f"    {row['name']} {row['type']}"]
    if row["order_by"]:
        words.append(f"collate {row['order_by']}")
    if row["fallback"] is not None:
        words.append(f"default {row['fallback']}")
    if row["is_needed"]:
        words.append("not null")
    return " ".join(words)


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
