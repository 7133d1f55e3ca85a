"""What a workflow awaits: the end of a task, a child or a step."""

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
    """The end of a task, child or step, for whoever awaits it. To stop waiting for it is to cancel it."""

    __slots__ = ("call", "issuer")
    is_told_elsewhere = True
    """Its failure: where it is awaited, or by the run itself, which goes on whether anyone waits for it or not."""
    maker: Any
    """Of one that is a task itself: the task that made it."""

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
        """It was cancelled: nobody waits for it any more."""


def let_go(calls: dict[int, Called]) -> None:
    """Of those that nobody awaits any more: they hold neither their workflow nor the line that called them."""
    for called in calls.values():
        called.issuer = None
        del called.call
    calls.clear()


def error_of(event: Event, call: Command | StepCall, run_id: UUID) -> Exception:
    """What is raised where the end of this call is awaited. A step has no id of its own, but its workflow's."""
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
    """Ids of the runs that a workflow starts: sorted by time, as all are, and the same in every replay. Those of one
    time count up from a place that only this workflow has: the rows of a fan-out are neighbours in every index.

    `begun` is the event that the history begins with: a run that continues as new numbers its commands anew.
    """

    def __init__(self, parent: UUID, begun: int) -> None:
        self._made_of = parent, begun
        self._noise = 0
        self._at: datetime | None = None
        self._first = 0

    def id(self, number: int, at: datetime) -> RunId:
        if not self._noise:  # only now: many workflows have none but steps
            parent, begun = self._made_of
            made_of = parent.bytes + begun.to_bytes(8, "big")
            self._noise = int.from_bytes(blake2b(made_of, digest_size=10).digest(), "big") & _NOISE
        if at is not self._at:
            self._at, self._first = at, (int(at.timestamp() * 1000) & 0xFFFF_FFFF_FFFF) << 80 | _VERSION
        noise = self._noise + (number << 16) & _NOISE  # not by one: the loop of a child tells its hashes apart by these
        return uuid_of(self._first | noise >> 62 << 64 | noise & _LOW)


_VERSION = 0x7 << 76 | 0x2 << 62
_NOISE, _LOW = (1 << 74) - 1, (1 << 62) - 1
"""All bits beside the time and the version, and those of them behind the variant."""
