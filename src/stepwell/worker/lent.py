"""The transaction in which a body writes, and whose commit completes its run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from stepwell.engine import settle
from stepwell.model.errors import ClaimLost, StepwellError, Unavailable, WrongUse
from stepwell.model.ids import ClaimId
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.model.turn import Advance, Consequences, Written
from stepwell.store.borrowed import borrow
from stepwell.store.lent import Lending, Lent
from stepwell.store.pool import ANSWER, Tx, is_of_data, reaching
from stepwell.store.sessions import PLAN_AS_OURS, kept
from stepwell.store.statements import Statements
from stepwell.worker.link import DataRefused, NotRecorded


class Writer(Protocol):
    """The part of a link that does our own writes in a body's transaction."""

    def completed(self, claim: Claim, settled: settle.Settled) -> None:
        """Announce what follows from a run that was completed, after the commit."""
        ...

    async def write(self, tx: Tx, advances: Sequence[Advance], claim_id: ClaimId) -> Consequences:
        """Write what turns wrote."""
        ...

    async def wrote(self, advances: Sequence[Advance], written: Consequences) -> Written:
        """Announce what follows from it, after the commit."""
        ...


@contextmanager
def blaming_data() -> Iterator[None]:
    """Raise DataRefused for an error of the data that is written; other errors may pass by themselves."""
    try:
        yield
    except Exception as error:
        if is_of_data(error):
            raise DataRefused(type(error).__name__, str(error)) from error
        raise


class LentTx:
    def __init__(self, lending: Lending, statements: Statements, writer: Writer) -> None:
        self._lending = lending
        self._statements = statements
        self._writer = writer
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

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        self._completing = True
        written = Consequences()

        async def write(tx: Tx) -> None:
            nonlocal written
            written = await self._writer.write(tx, advances, claim_id)

        with blaming_data():
            await self._finish(write)
        return await self._writer.wrote(advances, written)

    async def _complete(self, claim: Claim, result: bytes) -> None:
        settled = settle.Settled()

        async def complete(tx: Tx) -> None:
            nonlocal settled
            settled = await settle.apply(tx, settle.plan([(claim, Completed(result))]))
            if claim.id not in settled.moved:
                raise ClaimLost(claim.id, claim.attempt)

        await self._finish(complete)
        self._writer.completed(claim, settled)

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
        """Do our own part of the body's transaction. The rest of it, and its commit, belong to the body."""
        try:
            with reaching():
                await write(borrow(lent.connection, self._statements))
        except (StepwellError, TimeoutError):
            raise
        except Exception as error:
            if is_of_data(error):
                raise
            raise NotRecorded(error) from error
