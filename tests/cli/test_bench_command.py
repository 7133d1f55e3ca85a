from __future__ import annotations

import asyncio
import signal
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from stepwell.cli.measuring.figures import LIMIT, LINES, Figures
from stepwell.cli.measuring.schema import MARK

SMALL = ("--runs", "60", "--rounds", "1", "--yes")
THERE = "select exists (select from pg_namespace where nspname = $1)"


async def ask(dsn: str, sql: str, *values: object) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql, *values)
    finally:
        await connection.close()


async def until_there(dsn: str, schema: str) -> None:
    async with asyncio.timeout(20):
        while not await ask(dsn, THERE, schema):  # noqa: ASYNC110  # it happens in another process
            await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """What is measured by time takes a tenth of it: nobody here looks at the figures."""
    for name, seconds in {"STARTING": 0.06, "PROBING": 0.12, "SHORTLY": 0.02}.items():
        monkeypatch.setattr(f"stepwell.cli.measuring.rounds.{name}", seconds)


# -- measuring


async def test_it_measures_for_programs_and_leaves_nothing(stepwell, dsn, client):
    run = await client.start("shop.add", 1)
    said = await stepwell("bench", *SMALL, "--json")
    assert (said.code, said.err) == (0, "")
    told = said.json
    assert told["figures"].keys() == {line.name for line in LINES}
    assert all(each["median"] > 0 for each in told["figures"].values())
    assert told["figures"]["drain"]["limit"]["median"] > 0
    assert (told["runs"], told["rounds"]) == (60, 1)
    assert told["verdict"].endswith(".")
    assert not await ask(dsn, THERE, "stepwell_bench")
    assert [each.id for each in (await client.runs()).items] == [run.id]
    assert (await run.info()).state == "pending"


async def test_it_measures_for_people_on_the_database_of_an_app(stepwell, dsn):
    said = await stepwell("bench", "shop:app", *SMALL, "--schema-name", "aside")
    assert said.code == 0
    assert f"{urlsplit(dsn).path[1:]}, Postgres " in said.out
    for line in LINES:
        assert line.says in said.out
    assert "starts one by one are bound by" in said.out.splitlines()[-1]
    assert not await ask(dsn, THERE, "aside")


# -- the schema


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_it_and_the_schema_is_gone(process, dsn, number, code):
    async with process("bench", "--runs", "5000", "--yes") as bench:
        await until_there(dsn, "stepwell_bench")
        await asyncio.sleep(1.5)  # anywhere in its work
        bench.signal(number)
        assert await bench.exit_code() == code
    assert "dropping the schema stepwell_bench" in bench.output
    assert "Traceback" not in bench.output
    assert not await ask(dsn, THERE, "stepwell_bench")


async def test_what_a_killed_one_left_is_removed_by_the_next(process, stepwell, dsn):
    async with process("bench", "--yes") as bench:
        await until_there(dsn, "stepwell_bench")
        bench.signal(signal.SIGKILL)
    assert await ask(dsn, THERE, "stepwell_bench")
    async with asyncio.timeout(20):
        while (said := await stepwell("bench", *SMALL, "--json")).code == 1:
            # The server has not noticed yet that it is gone.
            assert "another `stepwell bench` is at work" in said.err
    assert said.code == 0
    assert not await ask(dsn, THERE, "stepwell_bench")


async def test_an_error_on_the_way_drops_the_schema_too(stepwell, dsn, monkeypatch):
    async def broken(*_: object) -> None:
        raise RuntimeError("this part broke")

    monkeypatch.setattr("stepwell.cli.measuring.bare.Bare.commit", broken)
    with pytest.raises(RuntimeError, match="this part broke"):
        await stepwell("bench", *SMALL)
    assert not await ask(dsn, THERE, "stepwell_bench")


async def test_two_do_not_meet_in_one_schema(stepwell, dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute("select pg_advisory_lock(hashtextextended('stepwell bench stepwell_bench', 0))")
    said = await stepwell("bench", *SMALL)
    await connection.close()
    assert said.code == 1
    assert "another `stepwell bench` is at work in it" in said.err


@pytest.mark.parametrize("extra", [(), ("--force",)])
async def test_a_foreign_schema_with_something_in_it_is_never_taken(stepwell, dsn, extra):
    await ask(dsn, "create schema stepwell_bench create table precious (n int)")
    said = await stepwell("bench", *SMALL, *extra)
    assert said.code == 2
    assert "`stepwell bench` did not make it: it holds" in said.err
    assert await ask(dsn, "select to_regclass('stepwell_bench.precious') is not null")


async def test_an_empty_foreign_schema_is_taken_by_force_only(stepwell, dsn):
    await ask(dsn, "create schema stepwell_bench")
    refused = await stepwell("bench", *SMALL)
    assert refused.code == 2
    assert "--force takes it" in refused.err
    assert await ask(dsn, "select obj_description('stepwell_bench'::regnamespace) is null")
    assert (await stepwell("bench", *SMALL, "--force", "--json")).code == 0
    assert not await ask(dsn, THERE, "stepwell_bench")


@pytest.mark.parametrize("name", ["stepwell", "public", "pg_catalog", "no-name"])
async def test_a_name_that_cannot_be_its_own_is_refused(stepwell, dsn, name):
    said = await stepwell("bench", *SMALL, "--schema-name", name, "--force")
    assert said.code == 2
    assert name in said.err


def test_the_mark_can_stand_in_a_statement():
    assert "'" not in MARK


# -- what keeps it from measuring


async def test_a_database_that_is_away_is_named(stepwell):
    said = await stepwell("bench", *SMALL, "--dsn", "postgresql://ann:hunter2@127.0.0.1:1/tea")
    assert said.code == 4
    assert "127.0.0.1:1/tea" in said.err
    assert "hunter2" not in said.err


async def test_a_role_that_may_not_make_a_schema_is_told_what_to_ask_for(stepwell, dsn):
    role = f"reader_{urlsplit(dsn).path[1:]}"
    await ask(dsn, f"create role {role} login password 'x'")
    try:
        parts = urlsplit(dsn)
        place = f"{role}:x@{parts.netloc.rpartition('@')[2]}"
        said = await stepwell("bench", *SMALL, "--dsn", urlunsplit(parts._replace(netloc=place)))
        assert said.code == 1
        assert "create schema stepwell_bench authorization" in said.err
    finally:
        await ask(dsn, f"drop role {role}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("shop:ap", "--yes"), "'ap' is not there. It has app."),
        (("no_such_module", "--yes"), "there is no module 'no_such_module'"),
        (("shop:app", "--dsn", "postgresql://x/y"), "APP brings its own database"),
        (("--runs", "0"), "--runs"),
        ((), "add --yes"),
    ],
)
async def test_wrong_usage_is_said_before_anything_is_touched(process, arguments, says):
    async with process("bench", *arguments) as bench:
        assert await bench.exit_code() == 2
    assert says in bench.output


# -- the verdict


def figures(**values: float) -> Figures:
    usual = {"round_trip": 0.1, "commit": 4.0, "single": 200.0, "drain": 5_000.0, "drain2": 8_000.0}
    usual |= {f"drain{LIMIT}": 10_000.0, f"drain2{LIMIT}": 16_000.0}
    return Figures({name: [value] for name, value in (usual | values).items()})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "A commit takes 4 ms here: starts one by one are bound by the disk. A second worker process drains 1.6"),
        ({"round_trip": 3.0}, "A round trip takes 3 ms here: starts one by one are bound by the network."),
        ({"commit": 0.4, "single": 900.0}, "A commit takes 0.4 ms here: starts one by one are bound by the processors"),
        ({}, "1.6 times as much: more of them help."),
        ({"drain": 9_000.0, "drain2": 9_000.0}, "A second worker process drains no more: the database is the bound."),
        ({"drain2": 5_500.0}, "drains little more: the processors of this machine are the bound."),
    ],
)
def test_the_verdict_names_what_bounds(values, says):
    assert says in figures(**values).verdict()


def test_a_cell_has_the_median_and_the_spread():
    assert Figures({"drain": [11_234.0, 9_000.0, 10_500.0]}).cell("drain") == "10,500 [9,000–11,200]"
    assert Figures({"drain": [0.1234]}).cell("drain") == "0.123"
