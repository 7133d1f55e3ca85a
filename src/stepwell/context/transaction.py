"""`current.tx()`: a transaction for a body's own writes, with whose commit its run is completed.

The block does not commit. What the body returns is not known before it has returned, so the connection is kept as the
block left it, and whoever settles the attempt adds the completed run and commits: both are there, or neither is.
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
        """The driver's connection, in a transaction."""
        ...

    def keep(self) -> None:
        """The body is done with it."""
        ...

    async def check(self) -> None:
        """Raise whatever the server has against a commit, before anyone counts on it."""
        ...

    def complete(self, claim: Claim, result: bytes) -> Awaitable[None]:
        """running -> completed, and the commit of everything. From the call on, `close` has no effect.

        Awaited, it raises ClaimLost when there is nothing left to complete, Unavailable when it may have happened,
        and NotRecorded when the record of the run is what failed. Any other error is what the server has against the
        body's own transaction.
        """
        ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        """Write what a turn asks for after this step, and commit everything; errors as of `complete`."""
        ...

    def close(self) -> None:
        """Take everything back, unless someone is about to complete it. Waits for nobody."""
        ...


class Here(Protocol):
    tx: OwnTx | None


lends: ContextVar[Callable[[], OwnTx] | None] = ContextVar("stepwell.lends", default=None)
"""Set by a worker for the bodies on its own event loop."""


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
        "make the task `async def`, without executor=, or write its effects so that they can be repeated"
    )


@asynccontextmanager
async def own_tx(here: Here) -> AsyncIterator[Any]:
    lend = lends.get()
    if lend is None:
        raise _not_here()
    if here.tx is not None:
        raise WrongUse(
            "current.tx() is there once in an attempt, since its commit completes the run: do it all in one block"
        )
    here.tx = tx = lend()
    try:
        yield await tx.begin()
    except BaseException:
        here.tx = None
        tx.close()
        raise
    tx.keep()
