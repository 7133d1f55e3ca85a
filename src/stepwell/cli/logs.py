"""The log of a worker on stderr: one line for each event, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from copy import copy
from datetime import UTC, datetime

import msgspec

from stepwell.cli.printing import plain

LEVELS = ("debug", "info", "warning", "error", "critical")


class ForPeople(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_text and not record.exc_info:
            record = copy(record)
            record.exc_text = plain(record.exc_text or "", keep="\n\t")
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = plain(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        return plain(super().formatException(ei), keep="\n\t")  # type: ignore[arg-type]  # logging's own tuple


class AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return msgspec.json.encode(line).decode()


def configure(*, level: str, as_json: bool) -> None:
    """Before the app is loaded: an app that sets up logging itself has the last word."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AsJson() if as_json else ForPeople())
    # What is shown is the handler's business: what bodies log is kept with their runs, however little is shown.
    handler.setLevel(level.upper())
    logging.basicConfig(level=min(handler.level, logging.INFO), handlers=[handler])
