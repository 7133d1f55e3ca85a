"""`current.tx()`: a transaction for a body's own writes, whose commit also completes the run.

The block does not commit, since the body's result is known only when it returns. The connection stays as the block left
it. The settlement of the attempt then adds the completed run and commits: both are there, or neither is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from stepwell.model.errors import WrongUse
from stepwell.model.ids import ClaimId
from stepwell.model.run import Claim
from stepwell.model.turn import Advance, Written


class OwnTx(Protocol):
    """The transaction of one attempt."""

    async def begin(self) -> Any:
        """Begin, and return the driver's connection."""
        ...

    def keep(self) -> None:
        """Note that the body's block is over: the transaction may be completed."""
        ...

    async def check(self) -> None:
        """Run deferred constraints now, and raise what the server has against a commit, before a result depends on
        it."""
        ...

    def complete(self, claim: Claim, result: bytes) -> Awaitable[None]:
        """running -> completed, and commit everything. From this call on, `close` has no effect.

        The awaitable raises ClaimLost if the run is no longer ours to complete, Unavailable if the commit may have
        happened, and NotRecorded if our own write is what failed. Any other error is what the server has against the
        body's writes.
        """
        ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        """Write what a turn asks for after this step, and commit everything; errors as of `complete`."""
        ...

    def close(self) -> None:
        """Roll back everything, unless it is about to be completed. Does not wait."""
        ...


class TxOwner(Protocol):
    """An attempt that can have a transaction of its own."""

    tx: OwnTx | None


lends: ContextVar[Callable[[], OwnTx] | None] = ContextVar("stepwell.lends", default=None)
"""Makes the transaction of an attempt. A worker sets it for the bodies on its own event loop."""


def lend_from_here(lend: Callable[[], OwnTx] | None) -> None:
    """Lend transactions to bodies on this event loop: elsewhere a connection of this one is of no use. None says that
    this worker has no connection that it could lend."""
    loop = asyncio.get_running_loop()

    def lent() -> OwnTx:
        if asyncio.get_running_loop() is not loop:
            raise _not_here()
        if lend is None:
            raise WrongUse(
                "this worker has no database connection of its own: current.tx() needs one; run it on a worker with a "
                "DSN"
            )
        return lend()

    lends.set(lent)


def _not_here() -> WrongUse:
    return WrongUse(
        "current.tx() is for `async def` tasks on the worker's own event loop, not for threads and processes: "
        "make the task `async def` without executor=, or use a connection of your own and make its writes idempotent"
    )


@asynccontextmanager
async def own_tx(here: TxOwner) -> AsyncIterator[Any]:
    """Open the attempt's own transaction for a block. If the block raises, roll it back."""
    lend = lends.get()
    if lend is None:
        raise _not_here()
    if here.tx is not None:
        raise WrongUse(
            "current.tx() can be opened only once in an attempt, since its commit completes the run: "
            "put all writes into one block"
        )
    here.tx = tx = lend()
    try:
        yield await tx.begin()
    except BaseException:
        here.tx = None
        tx.close()
        raise
    tx.keep()
