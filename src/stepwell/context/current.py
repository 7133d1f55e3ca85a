"""`current`: what a task's body may know of the run it belongs to."""

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
    """`current` is only there inside a task that a worker runs."""


class Running(Struct, eq=False):
    """An attempt under way, as its body sees it."""

    claim: Claim
    cancelled: bool = False
    inside: Inside | None = None
    """Where it says how far it is."""
    noted: Noted | None = None
    """What it has said, once it has said something."""
    alive_at: float = 0.0
    """When it last gave a sign of life; monotonic, and 0 before the first."""
    tx: OwnTx | None = None
    """Where its writes are kept, if it has opened one."""
    turn: Running | None = None
    """Of a step: the turn that it belongs to, with whose its lines are counted."""


class Inside(Shelf[Running], Protocol):
    """What whoever runs a body does for it meanwhile. All but the checkpoints: from any thread, and at once."""

    capture: int | None
    """The level from which on its log lines are kept; None: none are."""

    def alive(self, here: Running) -> None: ...

    def progress(self, here: Running, step: str, done: float, total: float | None, detail: bytes | None) -> None: ...

    def line(self, here: Running, level: str, logger: str, message: str) -> None: ...

    def leave_out(self, here: Running, lines: int) -> None:
        """So many more lines were written than there was room for."""
        ...


running: ContextVar[Running | None] = ContextVar("stepwell.running", default=None)


class Current:
    """The run this code belongs to. Every property raises NotInARun outside of one."""

    @property
    def run_id(self) -> UUID:
        return self._claim.id

    @property
    def name(self) -> str:
        return self._claim.name

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def key(self) -> str | None:
        return self._claim.key

    @property
    def tags(self) -> MappingProxyType[str, Any]:
        tags = self._claim.tags
        return MappingProxyType({} if tags is None else msgspec.json.decode(tags))

    @property
    def cancelled(self) -> bool:
        """Whether the claim is gone: for code in threads, which nobody can interrupt."""
        return _here().cancelled

    @property
    def checkpoint(self) -> Checkpoint:
        """What this run's body saved last, in this attempt or an earlier one."""
        here, inside = _inside()
        return Checkpoint(inside, here, here.claim, alive=lambda: inside.alive(here))

    def progress(
        self, step: str, done: float, total: float | None = None, *, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Say how far this step is: the last word counts. Never waits, and is a sign of life."""
        here, inside = _inside()
        if not isinstance(step, str) or not step.isprintable() or not 0 < len(step.encode()) <= _LONGEST_STEP:
            raise InvalidSetting("progress(step)", step, f"some printable text of up to {_LONGEST_STEP} bytes")
        if detail is not None and not isinstance(detail, Mapping):
            raise InvalidSetting("progress(detail)", detail, "must be a mapping of names to values")
        packed = None if detail is None else encode(dict(detail), where="progress(detail)")
        if packed is not None and len(packed) > _LARGEST_DETAIL:
            raise NotEncodable("progress(detail)", f"it takes {len(packed)} bytes, and {_LARGEST_DETAIL} is the limit")
        whole = None if total is None else _number("progress(total)", total)
        inside.alive(here)
        inside.progress(here, step, _number("progress(done)", done), whole, packed)

    def heartbeat(self) -> None:
        """A sign of life, for a task with heartbeat=: it does not hang. Never waits."""
        here, inside = _inside()
        inside.alive(here)

    def tx(self) -> AbstractAsyncContextManager[Any]:
        """An asyncpg connection in a transaction. What is written in it and the run's completion commit together,
        after the body has returned; or neither does, if it raises or its claim is lost."""
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
            f"{what} is for tasks and steps, and this is a workflow's own code. Write with current.tx() in a function "
            "with @app.step, and await that; the workflow's id and name are in workflow.info()"
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
    raise InvalidSetting(setting, value, "a number")


def noted(here: Running) -> Noted:
    """What this attempt has said so far."""
    if here.noted is None:
        here.noted = Noted() if here.turn is None else noted(here.turn)
    return here.noted


def measured(usage: Usage) -> None:
    """What the attempt here took, for whoever settles it."""
    here = running.get()
    if here is not None:
        here.claim.usage = usage


def family() -> tuple[UUID | None, UUID | None]:
    """Whose child a run started here would be: its parent, and the first of the line."""
    workflow = here_in_workflow()
    if workflow is not None:
        return workflow.about.id, workflow.about.root_id or workflow.about.id
    here = running.get()
    if here is None:
        return None, None
    return here.claim.id, here.claim.root_id or here.claim.id


def completes_in_its_own_tx(run_id: UUID) -> bool:
    """Whether this is the body of that run, and it has opened a current.tx()."""
    here = running.get()
    return here is not None and here.tx is not None and here.claim.id == run_id


class _Carried(msgspec.Struct, array_like=True):
    """A claim without its claim id: a body can settle nothing, and what it does not know it cannot leak."""

    run_id: UUID
    name: str
    queue: str
    attempt: int
    key: str | None
    tags: str | None
    root_id: UUID | None
    capture: int | None


def carried() -> str | None:
    """What `current` tells here, as text that another process can carry on from."""
    here = running.get()
    if here is None:
        return None
    claim = here.claim
    tags = None if claim.tags is None else claim.tags.decode()
    capture = None if here.inside is None else here.inside.capture
    told = _Carried(claim.id, claim.name, claim.queue, claim.attempt, claim.key, tags, claim.root_id, capture)
    return msgspec.json.encode(told).decode()


def carry_on(told: str | None, inside: Inside | None = None) -> Running | None:
    """Let `current` tell here what it told there."""
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
