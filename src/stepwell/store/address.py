"""Connects to the server that a DSN names; of several servers, to the one that accepts writes.

The driver tries the servers of a DSN one after the other, within one time limit: a machine that is down answers
nothing, and would use up all of that time. So each server is tried by its own task here, soon after the one before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from stepwell.model.dsn import WRITES, Server, read_dsn
from stepwell.model.errors import InvalidSetting, Unavailable
from stepwell.store.connections import Connection

REACH = 10.0
"""Seconds to wait for a server."""
HEAD_START = 0.5
"""Seconds that a server has before the next one is tried, too."""

# A server may be unavailable in each of these ways. Any other error is an answer, and the next server would give the
# same.
_TRY_NEXT = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.TooManyConnectionsError,
    Unavailable,
)


class Address:
    """The servers of a DSN. It remembers the one that was connected to last."""

    def __init__(self, dsn: str) -> None:
        self._read = read_dsn(dsn)
        self.dsn = self._read.text
        self._servers: Sequence[Server | None] = self._read.servers or (None,)
        # A standby is of no use here: where several servers are named, one of them must be the primary.
        self._target = self._read.target or (WRITES if len(self._servers) > 1 else None)
        self._last = 0

    async def connect(self, **how: Any) -> Connection:
        """Connect to the server that accepted the last connection, or else to the first that accepts this one."""
        if len(self._servers) == 1:
            return await self._try(self._servers[0], how)
        first, servers = self._last, self._servers
        order = [*range(first, len(servers)), *range(first)]
        attempts: list[asyncio.Task[Connection]] = []
        try:
            for place in order:
                attempts.append(asyncio.create_task(self._try(servers[place], how), name="stepwell.connecting"))
                if (found := await _first_connected(attempts, within=HEAD_START)) is not None:
                    break
            else:
                found = await _first_connected(attempts, within=None)
            if found is None:
                raise self._failure([each.exception() for each in attempts], order)
            self._last = order[attempts.index(found)]
            attempts.remove(found)
            return found.result()
        finally:
            for each in attempts:
                each.cancel()
                each.add_done_callback(_hang_up)

    async def _try(self, server: Server | None, how: dict[str, Any]) -> Connection:
        """Connect to one server, and turn the driver's errors about the DSN into ours."""
        settings: dict[str, Any] = {"target_session_attrs": self._target, "timeout": REACH, **how}
        if server is not None:
            settings |= {"host": server.host, "port": server.port}
        try:
            return await asyncpg.connect(self.dsn, **settings)
        except asyncpg.TargetServerAttributeNotMatched as error:
            raise Unavailable(f"the server is a standby or read-only, and {self._target} is required") from error
        except asyncpg.ClientConfigurationError as error:
            raise InvalidSetting("dsn", "…", str(error)) from error
        except UnicodeError as error:  # a host from the environment
            raise InvalidSetting("PGHOST", "…", "it is not a valid host name") from error
        except (
            asyncpg.UndefinedObjectError,
            asyncpg.CantChangeRuntimeParamError,
            asyncpg.InvalidParameterValueError,
        ) as error:
            if not self._read.has_settings:
                raise
            raise InvalidSetting("dsn", "…", f"the server refuses a parameter after the ?: {error}") from error

    def _failure(self, errors: Sequence[BaseException | None], order: Sequence[int]) -> BaseException:
        """Return the answer of a server, if one gave any; else Unavailable with the reason for each server."""
        for error in errors:
            if error is not None and not isinstance(error, _TRY_NEXT):
                return error
        reasons = (f"{self._servers[place]}: {_reason(error)}" for place, error in zip(order, errors, strict=True))
        return Unavailable("; ".join(reasons))


async def _first_connected(
    attempts: Sequence[asyncio.Task[Connection]], *, within: float | None
) -> asyncio.Task[Connection] | None:
    """Return the first task that has a connection; None when `within` is over or all tasks have failed."""
    end = None if within is None else asyncio.get_running_loop().time() + within
    while True:
        for each in attempts:
            if each.done() and not each.cancelled() and each.exception() is None:
                return each
        left = [each for each in attempts if not each.done()]
        wait = None if end is None else end - asyncio.get_running_loop().time()
        if not left or (wait is not None and wait <= 0):
            return None
        await asyncio.wait(left, timeout=wait, return_when=asyncio.FIRST_COMPLETED)


def _hang_up(attempt: asyncio.Task[Connection]) -> None:
    """Close a connection that is no longer needed, because another server was chosen."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


def _reason(error: BaseException | None) -> str:
    return error.reason if isinstance(error, Unavailable) else str(error) or type(error).__name__
