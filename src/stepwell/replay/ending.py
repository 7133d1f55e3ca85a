"""Derive the end of a workflow's code from its main task."""

from __future__ import annotations

import asyncio

from stepwell.model.commands import ROLLED_BACK, Ended
from stepwell.model.events import EventType
from stepwell.model.run import Error, Reason
from stepwell.replay.code import Code, ContinueAsNew
from stepwell.replay.signals import Signals


def end_of(main: asyncio.Task[bytes], code: Code, signals: Signals, *, asked: bool, undone: bool) -> Ended:
    """Return the end of the code.

    `asked` says that a cancellation was requested, `undone` that every compensation succeeded.
    """
    if main.cancelled():
        if asked:
            return Ended(EventType.WORKFLOW_CANCELLED)
        lost = Error("CancelledError", "the workflow cancelled itself", Reason.RAISED)
        return Ended(EventType.WORKFLOW_FAILED, error=lost)
    match main.exception():
        case None:
            return Ended(EventType.WORKFLOW_COMPLETED, main.result())
        case ContinueAsNew() as onward:
            return Ended(EventType.CONTINUED_AS_NEW, onward.input, signals=signals.unread())
        case error:
            state = ROLLED_BACK if undone else None
            return Ended(EventType.WORKFLOW_FAILED, error=code.describe(error), state=state)
