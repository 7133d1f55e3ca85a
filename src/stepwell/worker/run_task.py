"""An attempt of a task, from its claim to its outcome. Whatever the body does ends as a value here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepwell.context.current import Running, running
from stepwell.context.transaction import OwnTx
from stepwell.executors import base
from stepwell.executors.base import Body, Executor, ProcessDied, leading
from stepwell.model.errors import NotEncodable
from stepwell.model.outcome import Completed, Failed, Outcome, Snoozed
from stepwell.model.raised import Fatal, Snooze, delay_of
from stepwell.model.run import OVERDUE, Error, Reason


class CompletedWithin(Completed):
    """Completed by the commit of the body's own transaction, together with what it wrote there. It holds the live
    transaction, and so never goes through the link."""

    tx: OwnTx


async def run_task(attempt: Running, body: Body, executor: Executor, *, begun: Callable[[], None]) -> Outcome:
    """Run the body, and return how the attempt ended. Raise only CancelledError, when the worker itself ends it."""
    running.set(attempt)
    try:
        try:
            result = await executor.run(body, attempt.claim.input, begun)
            return Completed(result) if attempt.tx is None else CompletedWithin(result, attempt.tx)
        except Exception as error:
            if isinstance(snooze := leading(error), Snooze):
                return Snoozed(delay_of(snooze))
            raise
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # user code: whatever it raises is its outcome
        return failed(error)


def failed(error: BaseException) -> Failed:
    return Failed(_described(error))


def _described(error: BaseException) -> Error:
    names = base.type_names(error)
    return Error(
        type=names[0],
        message=base.message_text(error),
        reason=_reason(error),
        code=base.code_text(error),
        traceback=base.traceback_text(error),
        types=names,
    )


def _reason(error: BaseException) -> Reason:
    match leading(error):
        case Fatal() | NotEncodable():
            return Reason.GAVE_UP
        case ProcessDied():
            return Reason.WORKER_LOST
        case _:
            return Reason.RAISED


def overdue() -> Failed:
    return Failed(OVERDUE)


def silent(seconds: float) -> Failed:
    message = (
        f"the attempt gave no sign of life for {seconds:g} s, its heartbeat=: "
        "neither current.heartbeat(), nor progress, nor a checkpoint"
    )
    return Failed(Error("TimeoutError", message, Reason.TIMED_OUT, types=("TimeoutError", "OSError", "Exception")))


def timed_out(seconds: float) -> Failed:
    message = f"the attempt took longer than its timeout of {seconds:g} s"
    return Failed(Error("TimeoutError", message, Reason.TIMED_OUT, types=("TimeoutError", "OSError", "Exception")))
