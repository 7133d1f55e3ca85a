"""Outcomes of attempts, and the move that follows from each. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never

from msgspec import Struct

from stepwell.model.retry import Retry
from stepwell.model.run import Error, Reason


class Completed(Struct):
    """The body returned a result. Not frozen, because nearly every attempt creates one."""

    result: bytes


class CompletedWithin(Completed):
    """Completed by the commit of the body's own transaction, together with the body's writes."""

    tx: Any


@dataclass(frozen=True, slots=True)
class Failed:
    error: Error


@dataclass(frozen=True, slots=True)
class Snoozed:
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt was given back unfinished by a stopping worker; it does not count as a failure."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn that is over. It has written everything, or its write was refused."""

    lost: bool = False


Outcome = Completed | Failed | Snoozed | Released | Waiting


@dataclass(frozen=True, slots=True)
class Retried:
    """The attempt failed, and the run is due again after a delay."""

    error: Error
    delay: timedelta
    alone: bool


@dataclass(frozen=True, slots=True)
class Repeated:
    """The attempt failed, and the run is pending again at once."""

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
