"""`stepwell.start(…)`: from psql, a trigger, or any language, with the same defaults and checks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest

from stepwell import App, KeyConflict, State, Task
from stepwell.model.ids import new_run_id
from stepwell.store import migrate
from stepwell.store.pool import Database
from tests.waiting_for import all_ears, hearing, until

Sql: TypeAlias = "asyncpg.Connection[Any]"
Echo: TypeAlias = "Task[[Any], Any]"


@pytest.fixture
async def another(dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def count(sql: Sql) -> int:
    found: int = await sql.fetchval("select count(*) from stepwell.all_runs")
    return found


@pytest.mark.usefixtures("only_by_word")
async def test_a_run_started_from_sql_is_done_at_once_as_any_other(app: App, echo: Echo, sql: Sql) -> None:
    with hearing(app, "worker.ready") as ready:
        async with app.worker():
            await ready.wait()
            await all_ears(app, echo)
            run_id = await sql.fetchval("""select stepwell.start('echo', '{"what": "a@b.c"}', queue => 'mail')""")
            run = app.run(run_id)
            assert await run.result(timeout=30) == "a@b.c"
            assert (await run.info()).queue == "mail"


async def test_its_defaults_are_those_of_python(app: App, sql: Sql) -> None:
    ours = await app.start("nobody.knows")
    theirs = await sql.fetchval("select stepwell.start('nobody.knows')")
    columns = """select kind, name, queue, priority, state, input, key, tags, retry, timeout, attempt, failures, due_at,
                 expires_at, deadline_at, limit_key, per_key, unique_key, debounce_key, keep, parent_id, root_id
                 from stepwell.runs where id = $1"""
    assert await sql.fetchrow(columns, theirs) == await sql.fetchrow(columns, ours.id)


async def test_every_option_is_there(app: App, echo: Echo, sql: Sql) -> None:
    run_id = await sql.fetchval(
        """select stepwell.start('echo', '{"what": 1}', priority => 3, retry => '{"attempts": 7}', timeout => '9s',
           delay => '5m', expires => '1h', deadline => '2h', key => 'k', limit_key => 'acme', per_key => 2,
           tags => '{"tenant": "acme"}', keep => 'forever')"""
    )
    info = await app.run("k").info()
    assert (info.id, info.state, info.priority, info.tags) == (run_id, State.SCHEDULED, 3, {"tenant": "acme"})
    assert info.due_at is not None
    assert info.expires_at is not None
    assert (info.due_at - info.created_at, info.expires_at - info.created_at) == (
        timedelta(minutes=5), timedelta(hours=1),
    )  # fmt: skip
    row = await sql.fetchrow(
        "select retry, timeout, limit_key, per_key, deadline_at - created_at as deadline, keep from stepwell.runs"
    )
    assert tuple(row or ()) == ('{"attempts": 7}', timedelta(seconds=9), "acme", 2, timedelta(hours=2), "forever")
    at = datetime(2041, 1, 1, tzinfo=UTC)
    later = await sql.fetchval("select stepwell.start('echo', at => $1)", at)
    assert (await app.run(later).info()).due_at == at


@pytest.mark.usefixtures("only_by_word")
async def test_a_delayed_one_is_heard_of_and_done_in_time(app: App, echo: Echo, sql: Sql) -> None:
    async with app.worker():
        await (await echo.start("the services are up")).result(timeout=10)
        run_id = await sql.fetchval("""select stepwell.start('echo', '{"what": 1}', delay => '300ms')""")
        assert await app.run(run_id).result(timeout=30) == 1


async def test_a_trigger_starts_a_run_if_and_only_if_its_row_is_committed(app: App, echo: Echo, sql: Sql) -> None:
    await sql.execute("""
        create table users (id int, mail text);
        create function welcome() returns trigger language plpgsql as $$
        begin
            perform stepwell.start('echo', jsonb_build_object('what', new.mail), key => 'welcome-' || new.id);
            return new;
        end $$;
        create trigger welcome after insert on users for each row execute function welcome();
    """)
    async with app.worker():
        transaction = sql.transaction()
        await transaction.start()
        await sql.execute("insert into users values (1, 'gone@b.c')")
        await transaction.rollback()
        assert await count(sql) == 0
        await sql.execute("insert into users select n, n || '@b.c' from generate_series(1, 50) n")
        assert await app.run("welcome-50").result(timeout=10) == "50@b.c"
        assert {await app.run(f"welcome-{n}").result(timeout=10) for n in range(1, 51)} == {
            f"{n}@b.c" for n in range(1, 51)
        }


WRONG = {
    "''": "name = '': must be some printable text",
    "null": "name = null: must be some printable text",
    "E'a\\nb'": "must be some printable text",
    "repeat('x', 201)": "name: must not be longer than 200 bytes",
    "'t', '[1]'": "input = [1]: must be a JSON object",
    "'t', '\"a\"'": "must be a JSON object",
    "'t', 'null'": "must be a JSON object",
    "'t', null": "input = null: must be a JSON object",
    "'t', jsonb_build_object('a', repeat('x', 3000000))": "input = too long",
    "'t', '{'": "invalid input syntax for type json",
    "'t', queue => ''": "queue = ''",
    "'t', queue => repeat('x', 101)": "queue: must not be longer than 100 bytes",
    "'t', priority => 0": "priority = 0: 1 to 100",
    "'t', priority => 101": "priority = 101",
    "'t', priority => null": "priority = null",
    "'t', retry => '[]'": "retry = []: must be a JSON object",
    "'t', retry => '{\"tries\": 3}'": "retry = tries: known are attempts",
    "'t', retry => '{\"attempts\": 0}'": "attempts must be a whole number",
    "'t', retry => '{\"attempts\": \"3\"}'": "attempts must be a whole number",
    "'t', timeout => '0'": "timeout = 00:00:00: must be more than nothing",
    "'t', expires => '-1s'": "expires = -00:00:01",
    "'t', deadline => '0'": "deadline = 00:00:00",
    "'t', delay => '-1s'": "delay = -00:00:01: must not be less than nothing",
    "'t', timeout => '102 years'": "below a century",
    "'t', expires => '200000 years'": "below a century",
    "'t', delay => '102 years'": "below a century",
    "'t', at => 'infinity'": "at = infinity: a time between the years 1970 and 2999",
    "'t', at => '-infinity'": "at = -infinity: a time between",
    "'t', at => '200000-01-01'": "a time between the years 1970 and 2999",
    "'t', delay => '1s', at => now()": "give at or delay, not both",
    "'t', key => ''": "key = ''",
    "'t', key => repeat('x', 501)": "key: must not be longer",
    "'t', key => 'k', unique_key => 'u'": "give key or unique_key, not both",
    "'t', unique_key => ''": "unique_key = ''",
    "'t', limit_key => repeat('x', 201)": "limit_key: must not be longer",
    "'t', per_key => 2": "give limit_key too",
    "'t', limit_key => 'a', per_key => 0": "per_key = 0: at least 1",
    "'t', tags => '[]'": "tags = []",
    "'t', tags => jsonb_build_object('a', repeat('x', 10001))": "at most 10,000 bytes",
    "'t', keep => 'long'": "keep = long: none, forever, or null",
    "'t', keep => ''": "keep = : none, forever",
    "'t', debounce => '0', unique_key => 'u'": "debounce = 00:00:00: must be more than nothing",
    "'t', debounce => '102 years', unique_key => 'u'": "below a century",
    "'t', debounce => '1s'": "debounce = 00:00:01: give unique_key too: the name of what is debounced",
    "'t', debounce => '1s', key => 'k'": "give unique_key too",
    "'t', debounce => '1s', key => 'k', unique_key => 'u'": "give key or unique_key, not both",
    "'t', debounce => '1s', unique_key => ''": "unique_key = ''",
    "'t', debounce => '1s', unique_key => 'u', delay => '1s'": "it is a delay itself",
    "'t', debounce => '1s', unique_key => 'u', at => now()": "it is a delay itself",
    "'t', debounce => '1s', unique_key => 'u', limit_key => 'l'": "a run with limit_key cannot be debounced",
    "'t', colour => 'red'": "function stepwell.start(unknown, colour => unknown) does not exist",
}


@pytest.mark.parametrize(("given", "told"), WRONG.items(), ids=WRONG)
async def test_what_is_wrong_is_refused_and_named(tx: Any, given: str, told: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=re.escape(told)):
        await tx.connection.fetchval(f"select stepwell.start({given})")


async def test_a_policy_need_not_say_how_many_attempts_there_are(tx: Any) -> None:
    """An option that is not given is not checked, whatever the planner reckons ahead."""
    await tx.connection.fetchval("""select stepwell.start('t', retry => '{"delay": 5}')""")


# -- keys


async def test_a_key_leads_to_the_same_run_from_sql_and_from_python(app: App, echo: Echo, sql: Sql) -> None:
    asked = """select stepwell.start('echo', '{"what": {"b": [1, 2.5], "a": null}}', key => $1)"""
    from_sql = await sql.fetchval(asked, "sql first")
    assert await sql.fetchval(asked, "sql first") == from_sql
    assert (await echo.options(key="sql first").start({"a": None, "b": [1, 2.5]})).id == from_sql
    from_python = await echo.options(key="python first").start({"b": [1, 2.5], "a": None})
    assert await sql.fetchval(asked, "python first") == from_python.id
    assert await count(sql) == 2


async def test_a_key_with_another_input_is_refused_from_sql_and_from_python(app: App, echo: Echo, sql: Sql) -> None:
    asked = "select stepwell.start($1, $2::text::jsonb, key => $3)"
    held = await sql.fetchval(asked, "echo", '{"what": 1}', "sql first")
    with pytest.raises(KeyConflict) as refused:
        await echo.options(key="sql first").start(2)
    assert refused.value.run_id == held
    with pytest.raises(KeyConflict):
        await app.definition("other").options(key="sql first").start(what=1)
    ours = await echo.options(key="python first").start(1)
    for name, input, key in (
        ("echo", '{"what": 2}', "python first"), ("x", '{"what": 1}', "python first"), ("echo", "{}", "sql first"),
    ):  # fmt: skip
        with pytest.raises(asyncpg.UniqueViolationError, match="belongs to run") as told:
            await sql.fetchval(asked, name, input, key)
        assert str(ours.id if key == "python first" else held) in str(told.value)
    assert await count(sql) == 2


async def test_a_key_of_a_finished_run_leads_there_too(app: App, echo: Echo, sql: Sql) -> None:
    asked = """select stepwell.start('echo', '{"what": 1}', key => 'k')"""
    run_id = await sql.fetchval(asked)
    async with app.worker():
        await app.run(run_id).result(timeout=10)
    assert await sql.fetchval(asked) == run_id
    assert (await echo.options(key="k").start(1)).id == run_id
    with pytest.raises(KeyConflict):
        await echo.options(key="k").start(2)


async def test_two_transactions_that_want_one_key_make_one_run(sql: Sql, another: Sql) -> None:
    asked = "select stepwell.start('echo', key => 'k')"
    transaction = sql.transaction()
    await transaction.start()
    first = await sql.fetchval(asked)
    waiting = asyncio.create_task(another.fetchval(asked))
    blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await until(lambda: sql.fetchval(blocked))
    await transaction.commit()
    assert await waiting == first
    assert await count(sql) == 1


async def test_an_expired_key_may_be_taken_anew(app: App, echo: Echo, sql: Sql) -> None:
    run_id = await sql.fetchval("""select stepwell.start('echo', '{"what": 1}', key => 'k')""")
    await sql.execute("update stepwell.keys set expires_at = stepwell.now() - interval '1s'")
    other = "select stepwell.start('other', key => 'k')"
    with pytest.raises(asyncpg.UniqueViolationError):
        await sql.fetchval(other)
    await app.run(run_id).cancel()
    assert await sql.fetchval(other) != run_id


async def test_what_is_unique_leads_to_the_unfinished_run_from_both(app: App, echo: Echo, sql: Sql) -> None:
    asked = "select stepwell.start('echo', unique_key => 'acme')"
    run_id = await sql.fetchval(asked)
    assert await sql.fetchval(asked) == run_id
    assert (await echo.options(unique="acme").start(1)).id == run_id
    await app.run(run_id).cancel()
    assert await sql.fetchval(asked) != run_id


# -- debounced


async def test_what_is_debounced_from_sql_and_from_python_is_one_run_with_the_last_input(
    app: App, echo: Echo, sql: Sql
) -> None:
    asked = "select stepwell.start('echo', $1::text::jsonb, debounce => $2, unique_key => 'box', priority => 7)"
    first = await sql.fetchval(asked, '{"what": "a"}', timedelta(hours=1))
    assert (await app.run(first).info()).state is State.SCHEDULED
    assert (await echo.options(unique="box", debounce="2h").start("b")).id == first
    assert await sql.fetchval(asked, '{"what": "c"}', timedelta(milliseconds=50)) == first
    assert await count(sql) == 1
    async with app.worker():
        assert await app.run(first).result(timeout=30) == "c"
    assert await sql.fetchval(asked, '{"what": "d"}', timedelta(hours=1)) != first


async def test_a_debounced_run_has_the_other_options_as_one_of_python_has(app: App, echo: Echo, sql: Sql) -> None:
    options = {"priority": 3, "timeout": "9s", "expires": "1h", "deadline": "2h", "keep": "none", "tags": {"a": 1}}
    ours = await echo.options(unique="a", debounce="5m", queue="slow", **options).start(1)
    theirs = await sql.fetchval(
        """select stepwell.start('echo', '{"what": 1}', queue => 'slow', unique_key => 'b', debounce => '5m',
           priority => 3, timeout => '9s', expires => '1h', deadline => '2h', keep => 'none', tags => '{"a": 1}')"""
    )
    columns = """select kind, name, queue, priority, state, input, key, tags, retry, timeout, attempt, keep, unique_key,
                 limit_key, left(debounce_key, -1), due_at - created_at, expires_at - created_at,
                 deadline_at - created_at from stepwell.runs where id = $1"""
    found = await sql.fetchrow(columns, theirs)
    assert found == await sql.fetchrow(columns, ours.id)
    assert found is not None
    assert (found["state"], found["keep"]) == ("scheduled", "none")


async def test_a_run_that_is_not_to_be_kept_goes_whoever_started_it(app: App, echo: Echo, sql: Sql) -> None:
    run_id = await sql.fetchval("""select stepwell.start('echo', '{"what": 1}', keep => 'none')""")
    async with app.worker():
        assert await app.run(run_id).result(timeout=30) == 1
    assert await sql.fetchval("select keep from stepwell.finished_runs where id = $1", run_id) == "none"


# -- ids


async def test_its_id_is_of_this_moment_and_sorts_with_those_of_python(sql: Sql) -> None:
    before = new_run_id()
    made = [UUID(str(row["id"])) for row in await sql.fetch(
        "select stepwell.new_run_id() as id from generate_series(1, 2000)")]  # fmt: skip
    await asyncio.sleep(0.002)
    after = new_run_id()
    assert {each.version for each in made} == {7}
    assert {each.variant for each in made} == {"specified in RFC 4122"}
    assert len(set(made)) == 2000
    assert before.int >> 80 <= min(made).int >> 80
    assert max(made).int >> 80 <= after.int >> 80
    # Those that were not made in one microsecond are in their order.
    assert [each.int >> 66 for each in made] == sorted(each.int >> 66 for each in made)


# -- elsewhere


@pytest.mark.usefixtures("only_by_word")
async def test_it_works_in_a_schema_of_another_name(dsn: str) -> None:
    database = Database(dsn, "other")
    await migrate.migrate(database)
    app = App(dsn, schema="other")

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    sql = await asyncpg.connect(dsn)
    async with app, app.worker():
        await (await double.start(0)).result(timeout=10)
        run_id = await sql.fetchval("""select other.start('double', '{"n": 4}')""")
        assert await app.run(run_id).result(timeout=30) == 8
        async with sql.transaction():
            run = await double.options(tx=sql).start(5)
        assert await run.result(timeout=30) == 10
    assert await sql.fetchval("select count(*) from stepwell.runs") == 0
    await sql.close()


async def test_a_hostile_search_path_changes_nothing(sql: Sql) -> None:
    await sql.execute("""
        create function public.num_nonnulls(variadic "any") returns int language internal as 'pg_num_nonnulls';
        create function public.jsonb_typeof(jsonb) returns text language sql as $$ select 'hijacked' $$;
        set search_path = public, pg_catalog;
    """)
    run_id = await sql.fetchval("""select stepwell.start('echo', '{"what": 1}')""")
    row = await sql.fetchrow("select state, input from stepwell.runs where id = $1", run_id)
    assert row is not None
    assert (row["state"], json.loads(row["input"])) == ("pending", {"what": 1})
