"""Structured logs: the run that a log record belongs to, and events as lines of JSON."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TextIO

import msgspec

from stepwell.context.current import running
from stepwell.model.hooks import RunEvent, WorkerEvent
from stepwell.replay.current_replay import here as here_in_workflow


class RunFields(logging.Filter):
    """A logging filter that adds `run_id`, `run_name`, `attempt` and `queue` to every record; None outside of a body.

    Add it to a handler: there it sees every record that the handler does. A record that has a `run_id` keeps it.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(RunFields())
    >>> handler.setFormatter(logging.Formatter("%(levelname)s %(run_name)s %(run_id)s %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "run_id"):
            record.run_id, record.run_name, record.attempt, record.queue = _fields()
        return True


def _fields() -> tuple[str | None, str | None, int | None, str | None]:
    here = running.get()
    if here is not None:
        claim = here.claim
        return str(claim.id), claim.name, claim.attempt, claim.queue
    workflow = here_in_workflow()
    if workflow is not None:
        about = workflow.about
        return str(about.id), about.name, None, about.queue  # turns of a workflow do not count as attempts
    return None, None, None, None


class JsonLines:
    """A hook that writes each event as a line of JSON, with the event's fields; by default to stderr.

    >>> app.on("run.failed", "run.retrying")(JsonLines())
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: RunEvent | WorkerEvent) -> None:
        line = msgspec.json.encode(event).decode() + "\n"
        with self._lock:
            stream = self._stream or sys.stderr
            stream.write(line)
            stream.flush()
