"""`current`: the run that a task's body belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

import msgspec
from msgspec import Struct

from stepwell.codec import encode
from stepwell.context.checkpoints import Checkpoint, Shelf
from stepwell.context.transaction import OwnTx, own_tx
from stepwell.model.errors import InvalidSetting, NotEncodable, UsageError, WrongUse
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import Noted, Usage
from stepwell.model.run import Claim
from stepwell.replay.current_replay import here as here_in_workflow

_LONGEST_STEP, _LARGEST_DETAIL = 200, 10_000


@dataclass(eq=False)
class NotInARun(UsageError):
    """`current` works only inside a task or step that a worker runs."""


class Running(Struct, eq=False):
    """An attempt under way, as its body sees it."""

    claim: Claim
    cancelled: bool = False
    inside: Inside | None = None
    """Receiver of the body's progress, log lines and checkpoints."""
    noted: Noted | None = None
    """Counts of the notes that the body has made; None before the first."""
    alive_at: float = 0.0
    """Time of the body's last sign of life, monotonic; 0 before the first."""
    tx: OwnTx | None = None
    """The body's own transaction, if it has opened one."""
    turn: Running | None = None
    """The turn that a step belongs to: the step's log lines count as the turn's. None if this is no step."""


class Inside(Shelf[Running], Protocol):
    """Services for a body while it runs. Apart from checkpoints, each can be called from any thread, and returns at
    once."""

    capture: int | None
    """Lowest level of the log lines that are kept; None: no line is kept."""

    def alive(self, here: Running) -> None: ...

    def progress(self, here: Running, step: str, done: float, total: float | None, detail: bytes | None) -> None: ...

    def line(self, here: Running, level: str, logger: str, message: str) -> None: ...

    def leave_out(self, here: Running, lines: int) -> None:
        """Record that so many more lines were written than there was room for."""
        ...


running: ContextVar[Running | None] = ContextVar("stepwell.running", default=None)


class Current:
    """The run that this code belongs to. Outside of a run, every member raises NotInARun.

    >>> @app.task
    ... async def report(rows: list[int]) -> None:
    ...     for done, row in enumerate(rows):
    ...         current.progress("rows", done, len(rows))
    ...     print(current.run_id, current.attempt, current.tags)
    """

    @property
    def run_id(self) -> UUID:
        """Id of the run."""
        return self._claim.id

    @property
    def name(self) -> str:
        """Name of the definition."""
        return self._claim.name

    @property
    def queue(self) -> str:
        """Queue of the run."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1 on."""
        return self._claim.attempt

    @property
    def key(self) -> str | None:
        """Idempotency key of the run, if it was started with one."""
        return self._claim.key

    @property
    def tags(self) -> MappingProxyType[str, Any]:
        """Tags of the run; read-only."""
        tags = self._claim.tags
        return MappingProxyType({} if tags is None else msgspec.json.decode(tags))

    @property
    def cancelled(self) -> bool:
        """True once the claim is gone. Code in a thread must look at it: a thread cannot be interrupted."""
        return _here().cancelled

    @property
    def checkpoint(self) -> Checkpoint:
        """The state that this run's body saved last, in this attempt or an earlier one."""
        here, inside = _inside()
        return Checkpoint(inside, here, here.claim, alive=lambda: inside.alive(here))

    def progress(
        self, step: str, done: float, total: float | None = None, *, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Report how far a step is; the last report of each step counts. Never waits, and is a sign of life."""
        here, inside = _inside()
        if not isinstance(step, str) or not step.isprintable() or not 0 < len(step.encode()) <= _LONGEST_STEP:
            raise InvalidSetting("progress(step)", step, f"must be printable text of 1 to {_LONGEST_STEP} bytes")
        if detail is not None and not isinstance(detail, Mapping):
            raise InvalidSetting("progress(detail)", detail, "must be a mapping of names to values")
        packed = None if detail is None else encode(dict(detail), where="progress(detail)")
        if packed is not None and len(packed) > _LARGEST_DETAIL:
            raise NotEncodable("progress(detail)", f"it takes {len(packed)} bytes, and {_LARGEST_DETAIL} is the limit")
        whole = None if total is None else _number("progress(total)", total)
        inside.alive(here)
        inside.progress(here, step, _number("progress(done)", done), whole, packed)

    def heartbeat(self) -> None:
        """Give a sign of life: a task with heartbeat= that gives none for that long is ended. Never waits."""
        here, inside = _inside()
        inside.alive(here)

    def tx(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction, and return its asyncpg connection, for `async with`.

        The writes of the block and the run's completion commit together, after the body has returned. If the body
        raises, or its claim is lost, neither is committed.

        >>> async with current.tx() as connection:
        ...     await connection.execute("update accounts set balance = balance - 5 where id = 7")
        """
        return own_tx(_here("current.tx()"))

    @property
    def _claim(self) -> Claim:
        return _here().claim


def _here(what: str = "current") -> Running:
    here = running.get()
    if here is not None:
        return here
    if here_in_workflow() is not None:
        raise WrongUse(
            f"{what} works in tasks and steps only, and this is the code of a workflow. To write with current.tx(), "
            "do so in a function with @app.step, and await it here. The workflow's id and name are in workflow.info()"
        )
    raise NotInARun


def _inside() -> tuple[Running, Inside]:
    here = _here()
    if here.inside is None:
        raise NotInARun
    return here, here.inside


def _number(setting: str, value: float) -> float:
    try:
        if not isinstance(value, bool) and isfinite(number := float(value)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidSetting(setting, value, "must be a finite number")


def noted(here: Running) -> Noted:
    """Return the counts of the notes that this attempt has made; a step shares those of its turn."""
    if here.noted is None:
        here.noted = Noted() if here.turn is None else noted(here.turn)
    return here.noted


def measured(usage: Usage) -> None:
    """Note on the claim what the current attempt used, for the settlement."""
    here = running.get()
    if here is not None:
        here.claim.usage = usage


def family() -> tuple[UUID | None, UUID | None]:
    """Return the parent and root ids for a run that is started here; None for both outside of a run."""
    workflow = here_in_workflow()
    if workflow is not None:
        return workflow.about.id, workflow.about.root_id or workflow.about.id
    here = running.get()
    if here is None:
        return None, None
    return here.claim.id, here.claim.root_id or here.claim.id


def completes_in_its_own_tx(run_id: UUID) -> bool:
    """True if this is the body of that run, and it has opened a current.tx()."""
    here = running.get()
    return here is not None and here.tx is not None and here.claim.id == run_id


class _Carried(msgspec.Struct, array_like=True):
    """A claim without its claim id. A process that does not know the claim id can settle nothing, and cannot leak
    it."""

    run_id: UUID
    name: str
    queue: str
    attempt: int
    key: str | None
    tags: str | None
    root_id: UUID | None
    capture: int | None


def carried() -> str | None:
    """Pack what `current` shows here as text, for a body in another process."""
    here = running.get()
    if here is None:
        return None
    claim = here.claim
    tags = None if claim.tags is None else claim.tags.decode()
    capture = None if here.inside is None else here.inside.capture
    told = _Carried(claim.id, claim.name, claim.queue, claim.attempt, claim.key, tags, claim.root_id, capture)
    return msgspec.json.encode(told).decode()


def carry_on(told: str | None, inside: Inside | None = None) -> Running | None:
    """Make `current` show here what it showed in the process that packed it."""
    if told is None:
        running.set(None)
        return None
    run = msgspec.json.decode(told, type=_Carried)
    claim = Claim.bare(RunId(run.run_id), ClaimId(UUID(int=0)), run.queue, run.attempt)
    claim.name, claim.key, claim.root_id = run.name, run.key, run.root_id
    claim.tags = None if run.tags is None else run.tags.encode()
    if inside is not None:
        inside.capture = run.capture
    here = Running(claim, inside=inside)
    running.set(here)
    return here


current = Current()
