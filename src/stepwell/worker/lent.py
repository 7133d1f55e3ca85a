"""The transaction in which a body writes, and whose commit completes its run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stepwell.engine import settle
from stepwell.model.errors import ClaimLost, StepwellError, Unavailable, WrongUse
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.store.borrowed import borrow
from stepwell.store.lent import Lending, Lent
from stepwell.store.pool import ANSWER, Tx, is_of_data, reaching
from stepwell.store.sessions import PLAN_AS_OURS, kept
from stepwell.store.statements import Statements
from stepwell.worker.link import NotRecorded


class LentTx:
    """The own transaction of one attempt, on a connection that the worker lends."""

    def __init__(
        self, lending: Lending, statements: Statements, completed: Callable[[Claim, settle.Settled], None]
    ) -> None:
        """`completed` is called after the commit, with everything that follows from it."""
        self._lending = lending
        self._statements = statements
        self._told_completed = completed
        self._lent: Lent | None = None
        self._kept = False
        self._completing = False

    async def begin(self) -> Any:
        self._lent = await self._lending.take()
        return self._lent.connection

    def keep(self) -> None:
        self._kept = True

    def complete(self, claim: Claim, result: bytes) -> Awaitable[None]:
        self._completing = True
        return self._complete(claim, result)

    def close(self) -> None:
        if self._lent is not None and not self._completing:
            self._lending.take_back(self._lent)

    async def record(self, write: Callable[[Tx], Awaitable[None]]) -> None:
        self._completing = True
        await self._finish(write)

    async def _complete(self, claim: Claim, result: bytes) -> None:
        settled = settle.Settled()

        async def complete(tx: Tx) -> None:
            nonlocal settled
            settled = await settle.apply(tx, settle.plan([(claim, Completed(result))]))
            if claim.id not in settled.moved:
                raise ClaimLost(claim.id, claim.attempt)

        await self._finish(complete)
        self._told_completed(claim, settled)

    async def _finish(self, write: Callable[[Tx], Awaitable[None]]) -> None:
        lent = self._lent
        if lent is None:
            raise WrongUse("the body returned before its current.tx() had begun: await the code that uses it")
        try:
            await self._commit(lent, write)
        except (asyncio.CancelledError, Unavailable):
            # The connection may never answer again. Closing it rolls back, unless the server has received the commit.
            lent.connection.terminate()
            raise
        finally:
            self._lending.take_back(lent)

    async def check(self) -> None:
        if self._lent is not None and self._kept:
            self._refuse_if_ended(self._lent)
            async with asyncio.timeout(ANSWER):
                await self._lent.connection.execute("set constraints all immediate")

    def _refuse_if_ended(self, lent: Lent) -> None:
        if not lent.connection.is_closed() and not lent.connection.is_in_transaction():
            raise WrongUse(
                "the body ended the transaction of current.tx() itself: do not commit or roll back in the block"
            )

    async def _commit(self, lent: Lent, write: Callable[[Tx], Awaitable[None]]) -> None:
        if not self._kept:
            raise WrongUse("the body returned while its current.tx() block was open: await the code that uses it")
        with reaching():
            self._refuse_if_ended(lent)
            async with asyncio.timeout(ANSWER):
                await lent.connection.execute(PLAN_AS_OURS)
                await self._write(lent, write)
                with kept(lent.connection):
                    await lent.transaction.commit()

    async def _write(self, lent: Lent, write: Callable[[Tx], Awaitable[None]]) -> None:
        """Write our own part of the body's transaction. An error here is ours, unless it is one of the data."""
        try:
            with reaching():
                await write(borrow(lent.connection, self._statements))
        except (StepwellError, TimeoutError):
            raise
        except Exception as error:
            if is_of_data(error):
                raise
            raise NotRecorded(error) from error
