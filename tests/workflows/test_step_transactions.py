"""Steps whose own transaction cannot be committed."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from stepwell import App, Retry, StepFailed, current


@pytest.mark.parametrize("how", ["swallowed", "deferred", "ended"])
async def test_a_step_whose_transaction_cannot_be_committed_has_failed(
    app: App, sql: asyncpg.Connection[Any], how: str
) -> None:
    await sql.execute("create table written (value int primary key deferrable initially deferred)")
    await sql.execute("create table checked (value int primary key)")
    tries: list[int] = []

    @app.step(retry=Retry(attempts=2, delay=0.01))
    async def write() -> None:
        tries.append(1)
        async with current.tx() as connection:
            if how == "swallowed":
                try:
                    await connection.execute("insert into checked values (1), (1)")
                except asyncpg.UniqueViolationError:
                    pass  # but the transaction can do nothing any more
            elif how == "deferred":
                await connection.execute("insert into written values (1), (1)")
            else:
                await connection.execute("rollback")

    @app.workflow
    async def work() -> str:
        try:
            await write()
        except StepFailed as error:
            return error.type
        return "?"

    types = {
        "swallowed": "asyncpg.exceptions.InFailedSQLTransactionError",
        "deferred": "asyncpg.exceptions.UniqueViolationError",
        "ended": "stepwell.WrongUse",
    }
    async with app.worker():
        assert await (await work.start()).result(10) == types[how]
    assert len(tries) == 2
