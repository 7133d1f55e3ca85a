"""Outcomes of attempts, and the moves that follow from them. Values in, values out: tagged, so that a link can encode
them."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from msgspec import Struct

from stepwell.model.retry import Retry
from stepwell.model.run import Error, Reason


class Completed(Struct, tag=True):
    """The body returned. Not frozen, since nearly every attempt makes one."""

    result: bytes


class Failed(Struct, frozen=True, tag=True):
    error: Error


class Snoozed(Struct, frozen=True, tag=True):
    delay: timedelta


class Released(Struct, frozen=True, tag=True):
    """Given back unfinished by a worker that is stopping: no failure."""


class Waiting(Struct, frozen=True, tag=True):
    """A turn that is over. It has written what there is to write, or was refused."""

    lost: bool = False


Outcome = Completed | Failed | Snoozed | Released | Waiting


class Retried(Struct, frozen=True, tag=True):
    """Failed, and due again after a delay."""

    error: Error
    delay: timedelta
    alone: bool


class Repeated(Struct, frozen=True, tag=True):
    """Failed, and pending again at once."""

    error: Error
    alone: bool


Move = Completed | Failed | Retried | Repeated | Snoozed | Released


def decide(outcome: Outcome, *, retry: Retry, failures: int, noise: float, left: timedelta | None = None) -> Move:
    """Return the move for an outcome of a run that had failed `failures` times before and has the time `left`."""
    match outcome:
        case Waiting():
            raise AssertionError("a turn is written by itself")
        case Completed() | Released():
            return outcome
        case Snoozed():
            return outcome
        case Failed(error):
            delay = retry.delay_after(error, failures=failures + 1, noise=noise)
            if delay is None or (left is not None and delay >= left):
                return outcome
            # A run that is lost with its worker may have killed it, or may only have run beside the culprit. On its
            # last chance it runs apart from the other suspects.
            alone = error.reason is Reason.WORKER_LOST and failures + 2 >= retry.attempts
            return Retried(error, delay, alone) if delay else Repeated(error, alone)
        case _:
            assert_never(outcome)
