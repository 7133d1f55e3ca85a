"""A statement that the server cancels, as an administrator may at any moment: its verb is told that the database was
away, and in peace afterwards everything works."""

from __future__ import annotations

import asyncpg
import pytest
from proxy import Proxy

from stepwell import Unavailable
from stepwell.store.pool import Database


@pytest.mark.parametrize("frame", ["begin", "commit", "rollback"])
async def test_a_cancelled_frame_of_a_transaction_spoils_none_that_follow(proxy: Proxy, frame: str) -> None:
    database = Database(proxy.dsn, "stepwell", size=1, pooler=False)
    await database.open()
    cancelled = proxy.cancel(frame)
    with pytest.raises(KeyError if frame == "rollback" else Unavailable):
        async with database.transaction() as tx:
            await tx.rows("next_due")
            if frame == "rollback":
                raise KeyError
    assert cancelled.done == [frame]
    for _ in range(3):
        async with database.transaction() as tx:
            assert await tx.rows("next_due") == []
    await database.close()


async def test_each_of_our_statements_may_be_cancelled_alone_or_in_a_transaction_and_goes_through_the_next_time(
    proxy: Proxy,
) -> None:
    database = Database(proxy.dsn, "stepwell", size=1, pooler=False)
    await database.open()
    for name, statement in database.statements.items():
        nothing = dict.fromkeys(statement.params)
        proxy.cancel(name)
        with pytest.raises(Unavailable, match="QueryCanceled"):
            await database.rows(name, **nothing)
        cancelled = proxy.cancel(name)
        with pytest.raises(Unavailable, match="QueryCanceled"):
            async with database.transaction() as tx:
                await tx.rows(name, **nothing)
        assert cancelled.done == [name]
        # Nulls are not what it is for: here an answer is what counts.
        with pytest.raises((KeyError, asyncpg.PostgresError)):
            async with database.transaction() as tx:
                await tx.rows(name, **nothing)
                raise KeyError
    await database.close()
