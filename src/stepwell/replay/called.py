"""Futures for the ends that a workflow awaits: of tasks, children and steps."""

from __future__ import annotations

from asyncio import Future
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol
from uuid import UUID

from stepwell.model.commands import Command, StepCall
from stepwell.model.errors import RunCancelled, RunExpired, RunFailed, StepFailed
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId, uuid_of
from stepwell.replay.futures import DurableFuture
from stepwell.replay.loop import Loop


class Called(DurableFuture[Any]):
    """A future for the end of a task, child or step. Cancelling the future cancels the task, child or step."""

    __slots__ = ("call", "issuer")
    is_told_elsewhere = True
    """True: its failure needs no "never retrieved" report. The code that awaits it gets the error, and the run itself
    records it."""
    maker: Any
    """The task that created this one; set only if this future is itself a task."""

    def __init__(self, loop: Loop, call: Command | StepCall, issuer: Issuer) -> None:
        self.seq = loop.next_seq()
        Future.__init__(self, loop=loop)
        self.call = call
        self.issuer: Issuer | None = issuer

    def issued(self, call: Command | StepCall, issuer: Issuer) -> None:
        self.call = call
        self.issuer = issuer

    def cancel(self, msg: Any | None = None) -> bool:
        if self.issuer is not None and not self.done():
            self.issuer.give_up(self)
        return super().cancel(msg)


class Issuer(Protocol):
    def give_up(self, called: Called) -> None:
        """Withdraw or cancel a call whose future was cancelled."""


def let_go(calls: dict[int, Called]) -> None:
    """Drop the references from calls of an ended workflow to the workflow and to the code that made them."""
    for called in calls.values():
        called.issuer = None
        del called.call
    calls.clear()


def error_of(event: Event, call: Command | StepCall, run_id: UUID) -> Exception:
    """Return the exception to raise where the end of this call is awaited. A step has its workflow's id."""
    name = call.name or event.name or ""
    if isinstance(call, Command):
        run_id = call.run_id or run_id
    if event.error is None:
        return RunExpired(run_id, name) if event.state == "expired" else RunCancelled(run_id, name)
    kind = StepFailed if event.type == EventType.STEP_FAILED else RunFailed
    error = event.error
    return kind(
        run_id, name, event.attempt or 1, error.type, error.message, error.reason.value, error.code, error.traceback
    )


class ChildIds:
    """Ids of the runs that a workflow starts: sorted by time, as all ids are, and the same in every replay.

    Ids of the same time count up from a point that is unique to this workflow, so that the rows of a fan-out are
    neighbours in every index. `begun` is the index of the event with which the code began, because a run that continues
    as new numbers its commands anew.
    """

    def __init__(self, parent: UUID, begun: int) -> None:
        self._made_of = parent, begun
        self._noise = 0
        self._at: datetime | None = None
        self._first = 0

    def id(self, number: int, at: datetime) -> RunId:
        if not self._noise:  # computed lazily: many workflows call only steps
            parent, begun = self._made_of
            made_of = parent.bytes + begun.to_bytes(8, "big")
            self._noise = int.from_bytes(blake2b(made_of, digest_size=10).digest(), "big") & _NOISE
        if at is not self._at:
            self._at, self._first = at, (int(at.timestamp() * 1000) & 0xFFFF_FFFF_FFFF) << 80 | _VERSION
        # Steps of 2**16, because the loop of a child derives the seed of its hashes from the id.
        noise = self._noise + (number << 16) & _NOISE
        return uuid_of(self._first | noise >> 62 << 64 | noise & _LOW)


_VERSION = 0x7 << 76 | 0x2 << 62
_NOISE, _LOW = (1 << 74) - 1, (1 << 62) - 1
"""Masks of all bits but time, version and variant, and of those among them after the variant."""
