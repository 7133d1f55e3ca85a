"""Whether there is a pooler is found out when the database opens, or said by one option."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest

from stepwell import App, InvalidSetting
from stepwell.cli.doctor import examine
from stepwell.config import settings
from stepwell.model.dsn import read_dsn
from stepwell.store.pool import Database
from stepwell.store.sessions import SESSION
from stepwell.store.types_known import Knowing
from tests.pooler.bouncer import Bouncer, bouncing
from tests.pooler.bringing import Program
from tests.shelf import sibling
from tests.waiting_for import until

OURS = ("enable_seqscan", "enable_bitmapscan", "synchronous_commit", "statement_timeout", "lock_timeout")


@asynccontextmanager
async def opened(dsn: str, pooler: bool | None = None) -> AsyncIterator[Database]:
    database = Database(dsn, "stepwell", pooler=pooler)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def answer(database: Database, **settings: str) -> dict[str, str]:
    """What a statement on its own finds set, and one in a transaction."""
    connection = await database.connect(**settings)
    asked = "select name, setting from pg_settings where name = any($1::text[])"
    try:
        alone = await connection.fetch(asked, list(OURS))
        async with connection.transaction():
            assert await connection.fetch(asked, list(OURS)) == alone
        return {row["name"]: row["setting"] for row in alone}
    finally:
        connection.terminate()


WANTED = dict(zip(OURS, ("off", "off", "on", "60000", "2000"), strict=True))


async def test_without_a_pooler_none_is_found(dsn: str) -> None:
    async with opened(dsn) as database:
        assert not database.is_pooled
        assert await answer(database) == WANTED


async def test_one_that_lends_for_a_transaction_is_found(pooled: str) -> None:
    async with opened(pooled) as database:
        assert database.is_pooled
        assert await answer(database) == WANTED


async def test_one_behind_a_server_that_is_away_is_found_too(pooled: str) -> None:
    (pooler,) = read_dsn(pooled).servers
    parts = urlsplit(pooled)
    both = f"host=/tmp/nobody-is-here,{quote(pooler.host)}&port=1,{pooler.port}"
    async with opened(urlunsplit(parts._replace(query=both))) as database:
        assert database.is_pooled
        assert await answer(database) == WANTED


async def test_a_connection_with_settings_of_its_own_has_them_there_too(pooled: str) -> None:
    async with opened(pooled) as database:
        found = await answer(database, synchronous_commit="off", statement_timeout="0")
        assert found == WANTED | {"synchronous_commit": "off", "statement_timeout": "0"}


async def test_one_that_takes_every_setting_and_forgets_it_is_found(program: Program, server: str, dsn: str) -> None:
    ignored = ",".join({*OURS, *SESSION})
    with bouncing(program, server, mode="transaction", ignore_startup_parameters=ignored) as lax:
        async with opened(lax(dsn)) as database:
            assert database.is_pooled
            assert await answer(database) == WANTED


async def test_one_that_lends_whole_sessions_is_treated_with_the_same_care(session: Bouncer, dsn: str) -> None:
    async with opened(session(dsn)) as database:
        assert database.is_pooled
        assert await answer(database) == WANTED


async def test_sessions_that_are_lent_whole_can_be_declared_our_own(session: Bouncer, dsn: str) -> None:
    async with App(session(dsn), pooler=False) as app:

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        async with app.worker() as worker:
            await until(lambda: heard(worker))
            assert await (await double.start(4)).result(10) == 8
        async with opened(session(dsn), pooler=False) as database:
            assert not database.is_pooled
            assert await answer(database) == WANTED


async def heard(worker: object) -> bool:
    return bool(worker._link.hears)  # type: ignore[attr-defined]


async def test_the_option_makes_it_so_without_looking(dsn: str) -> None:
    async with opened(dsn, pooler=True) as database:
        assert database.is_pooled
        assert await answer(database) == WANTED
        connection = await database.connect()
        assert await connection.fetchval("select current_setting('enable_seqscan')") == "on", "nothing is left behind"
        assert await connection.fetchval("select count(*) from pg_prepared_statements") == 0
        await connection.close()


@pytest.mark.parametrize(("said", "means"), [("1", True), ("yes", True), ("0", False), ("", None), ("auto", None)])
def test_the_environment_says_it_too_and_the_call_goes_before(
    monkeypatch: pytest.MonkeyPatch, said: str, means: bool | None
) -> None:
    monkeypatch.setenv("STEPWELL_POOLER", said)
    assert settings().pooler is means
    assert settings(pooler=True).pooler is True
    assert settings(pooler=False).pooler is False


def test_an_environment_that_says_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_POOLER", "perhaps")
    with pytest.raises(InvalidSetting, match="perhaps"):
        settings()


async def test_a_server_that_is_not_there_leaves_the_question_open(transaction: Bouncer, dsn: str, pooled: str) -> None:
    missing = Database(transaction(sibling(dsn, "no_such_database")), "stepwell")
    with pytest.raises(Exception, match="no_such_database"):
        await missing.open()
    assert not missing.is_pooled


@pytest.mark.parametrize(("by", "says"), [(None, "found out"), (True, "as it was told")])
async def test_the_doctor_tells(pooled: str, by: bool | None, says: str) -> None:
    (finding,) = [each for each in await examine(settings(pooled, pooler=by)) if each.subject == "pooler"]
    assert (finding.verdict, says in finding.text, "transaction" in finding.text) == ("good", True, True)


async def test_the_doctor_finds_none(dsn: str) -> None:
    (finding,) = [each for each in await examine(settings(dsn)) if each.subject == "pooler"]
    assert finding.text == "none, found out"


async def test_who_connects_directly_pays_nothing_for_it(dsn: str) -> None:
    async with opened(dsn) as database:
        connection = await database.connect()
        try:
            assert type(connection) is Knowing
            asked = [
                each["statement"] for each in await connection.fetch("select statement from pg_prepared_statements")
            ]
            assert not [each for each in asked if "pg_backend_pid" in each]
        finally:
            connection.terminate()


async def test_nothing_of_ours_stays_in_a_session(pooled: str, transaction: Bouncer, dsn: str) -> None:
    """The next in it is somebody else, whose plans are their own."""
    async with opened(pooled) as database:
        await asyncio.gather(*(database.rows("server_facts", old=None) for _ in range(20)))
        async with database.transaction() as tx:
            await tx.rows("work_facts")
    stranger = await asyncpg.connect(pooled, statement_cache_size=0)
    try:
        for _ in range(10):
            changed = await stranger.fetch("select name, setting from pg_settings where source = 'session'")
            assert {row["name"] for row in changed} <= {"application_name", "client_encoding", "jit"}
            assert await stranger.fetchval("select count(*) from pg_prepared_statements") == 0
            assert await stranger.fetchval("show jit") == "on"
    finally:
        await stranger.close()
