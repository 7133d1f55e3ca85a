"""Capture of log records: lines that bodies write to their loggers are kept with their attempts.

One `logging.Handler` stands on the root logger, as long as a worker wants it. It changes nothing for other handlers. A
record that no body wrote costs one look.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell.context.current import running
from stepwell.model.errors import InvalidSetting

LINE = 4096
"""Longest line, in bytes."""
_OWN = "stepwell"
_NAME = 200

_tracebacks = logging.Formatter()


class Capture(logging.Handler):
    """A handler that receives every record, and keeps those that belong to an attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._users = 0
        self._lowered: int | None = None
        self._mutex = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        here = running.get()
        if here is not None and (inside := here.inside) is not None:
            own = record.name == _OWN or record.name.startswith(f"{_OWN}.")
            if not own and inside.capture is not None and record.levelno >= inside.capture:
                try:
                    inside.line(here, cut(record.levelname, _NAME), cut(record.name, _NAME), cut(_text(record), LINE))
                except Exception:
                    self.handleError(record)
        if record.levelno >= logging.WARNING and self._is_alone(record.name):
            self._print(record)

    def _is_alone(self, name: str) -> bool:
        """True if this logger has no other handler. Python itself would then have printed the record."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _print(self, record: logging.LogRecord) -> None:
        if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)

    def hold(self, level: int) -> None:
        """Add a user, and install the handler for the first. Lower the root level if logging is not set up."""
        root = logging.getLogger()
        with self._mutex:
            self._users += 1
            if root.level == logging.WARNING and level < root.level and all(each is self for each in root.handlers):
                # Logging is not set up. Records below WARNING would not reach this handler; what Python itself prints
                # stays the same.
                self._lowered = level
                root.setLevel(level)
            root.addHandler(self)

    def let_go(self) -> None:
        """Drop a user. Remove the handler after the last, and restore the root level."""
        root = logging.getLogger()
        with self._mutex:
            self._users -= 1
            if self._users:
                return
            root.removeHandler(self)
            if self._lowered is not None and root.level == self._lowered:
                root.setLevel(logging.WARNING)
            self._lowered = None


_capture = Capture()


@contextmanager
def capturing(level: int | None) -> Iterator[None]:
    """Capture log lines of bodies of at least this level while the block lasts; nothing if the level is None."""
    if level is None:
        yield
        return
    _capture.hold(level)
    try:
        yield
    finally:
        _capture.let_go()


def checked_level(given: str | int | None) -> int | None:
    """Return the number of a log level that was given by name or number."""
    level = logging.getLevelNamesMapping().get(given.upper()) if isinstance(given, str) else given
    if (level is None and given is not None) or isinstance(level, bool) or (level is not None and level < 0):
        raise InvalidSetting("capture_logs", given, "the name of a level, such as 'INFO', or None")
    return level


def cut(text: str, limit: int) -> str:
    """Shorten a text to `limit` bytes, and escape what Postgres cannot store."""
    data = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    mark = f"… {len(data) - limit} bytes left out".encode()
    return data[: limit - len(mark)].decode("utf-8", "ignore") + mark.decode()


def _text(record: logging.LogRecord) -> str:
    parts = [record.getMessage()]
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(record.exc_text or _tracebacks.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
