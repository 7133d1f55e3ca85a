"""The log of failures: runs that failed or expired, attempts that will be retried, workflows that are blocked. Logged
after the commit.

    stepwell.runs        final failures, with their traceback; runs that expired
    stepwell.attempts    attempts that will be tried again
    stepwell.workflows   workflows whose code does not fit their history

Neither inputs nor results are logged. A long message loses its middle, since a cause often stands at the end.
"""

from __future__ import annotations

import logging
from typing import Any

from stepwell.hooks.events import events_of
from stepwell.model.hooks import RunEvent
from stepwell.model.run import Error
from stepwell.model.wording import at, length

runs = logging.getLogger("stepwell.runs")
attempts = logging.getLogger("stepwell.attempts")
workflows = logging.getLogger("stepwell.workflows")

LOGGED = frozenset({"run.failed", "run.retrying", "run.expired", "workflow.blocked"})
"""Types of events that are logged."""
MESSAGE, TRACEBACK = 600, 20_000
"""Most characters of a message in its line, and of a traceback below it."""


def log_failures(name: str, facts: dict[str, Any]) -> None:
    """Log failures: a telemetry listener."""
    for event in events_of(name, facts, LOGGED):
        if isinstance(event, RunEvent):
            _log(event)


def _log(event: RunEvent) -> None:
    error = event.error
    match event.type:
        case "run.failed":
            _write(runs, logging.ERROR, f"{_failed(event)}{_of(error)}", event, error.traceback if error else None)
        case "run.retrying":
            _write(attempts, logging.WARNING, f"{_failed(event)}{_of(error)}; {_again(event)}", event)
        case "run.expired":
            _write(
                runs,
                logging.WARNING,
                f"{_who(event)} expired: no worker started it, or started it again, within its expires=",
                event,
            )
        case "workflow.blocked":
            _write(workflows, logging.ERROR, one_line(error.message if error else "", 2 * MESSAGE), event)


def _who(event: RunEvent) -> str:
    return f"{event.name} {event.run_id}"


def _failed(event: RunEvent) -> str:
    if not event.attempt:
        return f"{_who(event)} failed before its first attempt"
    if event.kind == "workflow" and event.max_attempts is None:
        return f"{_who(event)} failed"  # turns of a workflow do not count as attempts
    which = f"attempt {event.attempt}"
    if event.max_attempts is not None:
        same = event.failures == event.attempt
        which += f" of {event.max_attempts}" if same else f", failure {event.failures} of {event.max_attempts}"
    return f"{_who(event)} failed at {which}"


def _of(error: Error | None) -> str:
    return "" if error is None else f" ({error.reason}): {error.type}: {one_line(error.message, MESSAGE)}"


def _again(event: RunEvent) -> str:
    if event.next_at is None or event.next_at <= event.at:
        return "the next try is due at once"
    return f"the next try is due in {length(event.next_at - event.at)}, at {at(event.next_at)}"


def _write(logger: logging.Logger, level: int, text: str, event: RunEvent, traceback: str | None = None) -> None:
    if not logger.isEnabledFor(level):
        return
    fields = {
        "run_id": str(event.run_id), "run_name": event.name, "attempt": event.attempt, "queue": event.queue,
    }  # fmt: skip
    record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (text,), None, extra=fields)
    if traceback:
        # The exception may have been raised in another process: give formatters the text of its traceback.
        record.exc_text = shortened(traceback.rstrip("\n"), TRACEBACK)
    logger.handle(record)


def one_line(text: str, limit: int) -> str:
    """Return the text as one printable line, without its middle if it is too long."""
    line = " ".join(shortened(text, 4 * limit).split())
    return shortened("".join(each if each.isprintable() else "�" for each in line), limit)


def shortened(text: str, limit: int) -> str:
    """Return the text without its middle if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    mark = f" … {len(text) - limit} characters left out … "
    head = max(0, limit - len(mark)) // 2
    return f"{text[:head]}{mark}{text[len(text) - head :]}"
