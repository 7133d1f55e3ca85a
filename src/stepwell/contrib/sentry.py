"""Failures as Sentry events: a hook reports final failures, and each attempt has a Sentry scope of its own.

    import sentry_sdk
    from stepwell.contrib.sentry import install

    sentry_sdk.init(dsn)
    install(app)

The process that settled the run reports the error, as it is recorded in the tables. The report has the scope of the
body (tags, breadcrumbs) if that ran in the same process, inline or in a thread.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Coroutine, Iterator
from types import ModuleType
from typing import Any
from uuid import UUID

from stepwell.app import App
from stepwell.context.current import Running
from stepwell.model.errors import WrongUse
from stepwell.model.hooks import RunEvent, WorkerEvent
from stepwell.model.outcome import Failed, Outcome
from stepwell.model.run import Error

SCOPES = 1000
"""Limit of scopes that are kept of failed attempts until the failure is reported."""
LOGGERS = ("stepwell.runs", "stepwell.attempts", "stepwell.workflows")

_FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+), in (?P<function>.+)\n(?:    (?P<code>\S.*)\n)?', re.M)
_CHAINED = re.compile(
    r"\n(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)\n\n"
)


def install(app: App, *, retrying: bool = False) -> None:
    """Report final failures and blocked workflows of this app to Sentry; with `retrying`, also attempts that will be
    retried, as warnings.

    Our log of failures is then ignored by Sentry's logging integration, so that nothing is reported twice.
    """
    sentry = _Sentry(_sdk())
    sentry.ignore_logs()
    app.hooks.around = sentry.in_a_scope
    app.on("run.failed", "workflow.blocked")(sentry.report)
    if retrying:
        app.on("run.retrying")(sentry.report)
    app.on("worker.stopped")(sentry.flush)


def _sdk() -> ModuleType:
    try:
        import sentry_sdk
        import sentry_sdk.integrations.logging
    except ImportError as error:
        raise WrongUse("stepwell.contrib.sentry needs the Sentry SDK: pip install 'stepwell[sentry]'") from error
    return sentry_sdk


class _Sentry:
    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._scopes: OrderedDict[tuple[UUID, int], Any] = OrderedDict()

    def ignore_logs(self) -> None:
        for name in LOGGERS:
            self._sdk.integrations.logging.ignore_logger(name)

    async def in_a_scope(self, attempt: Running, steps: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run an attempt in a scope of its own. If the attempt fails, keep the scope until the failure is reported."""
        claim = attempt.claim
        with self._sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_tags(_tags(claim.id, claim.name, claim.queue, claim.attempt))
            outcome = await steps
        if isinstance(outcome, Failed):
            self._scopes[UUID(bytes=claim.id.bytes), claim.attempt] = scope
            if len(self._scopes) > SCOPES:
                self._scopes.popitem(last=False)
        return outcome

    def report(self, event: RunEvent) -> None:
        scope = self._scopes.pop((event.run_id, event.attempt), None)
        if scope is not None:
            with self._sdk.scope.use_isolation_scope(scope):
                self._sdk.capture_event(_told(event))
            return
        with self._sdk.isolation_scope() as fresh:
            fresh.clear_breadcrumbs()
            self._sdk.capture_event(_told(event))

    def flush(self, _event: WorkerEvent) -> None:
        self._sdk.flush(timeout=2.0)


def _told(event: RunEvent) -> dict[str, Any]:
    error = event.error
    told: dict[str, Any] = {
        "level": "warning" if event.type == "run.retrying" else "error",
        "logger": "stepwell",
        "timestamp": event.at,
        "transaction": event.name,
        "tags": _tags(event.run_id, event.name, event.queue, event.attempt),
        "contexts": {"stepwell": _context(event)},
        "fingerprint": [event.name, event.type if error is None else error.code or error.type],
    }
    if error is not None:
        told["tags"]["reason"] = str(error.reason)
        if error.code is not None:
            told["tags"]["error_code"] = error.code
        told["exception"] = {"values": list(exceptions(error))}
        if error.traceback is not None and "stacktrace" not in told["exception"]["values"][-1]:
            told["extra"] = {"traceback": error.traceback}
    return told


def _tags(run_id: UUID, name: str, queue: str, attempt: int) -> dict[str, str]:
    return {"run_id": str(run_id), "run_name": name, "queue": queue, "attempt": str(attempt)}


def _context(event: RunEvent) -> dict[str, Any]:
    return {
        "event": event.type,
        "kind": event.kind,
        "failures": event.failures,
        "max_attempts": event.max_attempts,
        "next_at": None if event.next_at is None else event.next_at.isoformat(),
        "worker": None if event.worker is None else str(event.worker),
        "run_tags": event.tags,
    }


def exceptions(error: Error) -> Iterator[dict[str, Any]]:
    """Yield the error and its causes, causes first, as far as the text of the traceback shows them."""
    texts = _CHAINED.split(error.traceback or "")
    for text in texts[:-1]:
        type, _, message = text[_end_of_frames(text) :].strip().partition(": ")
        yield _exception(type, message, text)
    yield _exception(error.type, error.message, texts[-1])


def _exception(type: str, message: str, text: str) -> dict[str, Any]:
    module, _, name = type.rpartition(".")
    told: dict[str, Any] = {"type": name, "module": module or None, "value": message}
    frames = [
        {
            "filename": found["path"].rpartition("/")[2], "abs_path": found["path"], "lineno": int(found["line"]),
            "function": found["function"], "context_line": found["code"],
        }
        for found in _FRAME.finditer(text)
    ]  # fmt: skip
    return {**told, "stacktrace": {"frames": frames}} if frames else told


def _end_of_frames(text: str) -> int:
    """Return the offset of the traceback's last paragraph: after its frames, and the markers below their code."""
    end = max((found.end() for found in _FRAME.finditer(text)), default=0)
    while (line := text[end:].partition("\n")[0]).startswith("    "):
        end += len(line) + 1
    return end
