from __future__ import annotations

import asyncpg
import pytest

COLUMNS = """
select c.relname, c.relkind, a.attname, a.atttypid::regtype::text, a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid), c.reloptions
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 order by c.relname, a.attnum
"""


async def schema_of(connection, schema: str) -> list[str]:
    rows = await connection.fetch(COLUMNS, schema)
    # A type is named without its schema where that is in the search path, as the one named like the user is.
    return [str(tuple(row)).replace(f"{schema}.", "") for row in rows]


async def output_of(command) -> str:
    async with command as running:
        assert await running.exit_code() == 0
    return running.output


async def test_what_it_prints_makes_what_it_would_make(process, dsn):
    printed = await output_of(process("migrate", "--print", "--schema", "printed"))
    assert printed.startswith("begin;")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(printed)
        assert await schema_of(connection, "printed") == await schema_of(connection, "stepwell")
    finally:
        await connection.close()
    assert "already current" in await output_of(process("migrate", "--schema", "printed"))


async def test_it_says_what_it_applied_and_then_that_there_is_nothing_left(stepwell):
    assert (await stepwell("migrate", "--schema", "new")).out.startswith("applied 0001 ")
    assert (await stepwell("migrate", "--schema", "new", "--json")).json["applied"] == []
    again = await stepwell("migrate", "--schema", "new", "--print")
    assert (again.code, again.out) == (0, "")


@pytest.mark.parametrize("extra", [["--all"], ["--dsn", "postgresql://127.0.0.1:1/tea"]])
async def test_all_is_printed_when_nobody_can_say_what_is_missing(stepwell, extra):
    said = await stepwell("migrate", "--print", *extra)
    assert said.code == 0
    assert said.out.startswith("begin;")
    assert said.out.endswith("commit;\n")
