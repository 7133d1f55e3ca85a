"""Printing for commands. Text from users may hold anything: what could move the cursor is shown, not done."""

from __future__ import annotations

import unicodedata
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
import msgspec

from stepwell.model.innermost import innermost
from stepwell.model.run import Attempt, RunInfo

# Cc: control characters. Cf: invisible ones, among them those that turn the direction of writing.
# Cs: halves of surrogate pairs, which cannot be encoded. Zl, Zp: line ends of another alphabet.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
COLOURS = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "released": "yellow",
    "snoozed": "blue",
    "scheduled": "blue",
    "live": "green",
    "lost": "red",
    "paused": "yellow",
}


def plain(text: str, *, keep: str = "") -> str:
    """The text with control characters and escapes spelled out, but for those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in keep or _is_shown(each) else _spelled(each) for each in text)


def json_text(value: Any) -> str:
    """JSON, in which every unprintable character is an escape: no parser minds, and no terminal obeys."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_shown(each) else _json_escape(each) for each in text)


def facts(value: RunInfo | Attempt) -> dict[str, Any]:
    """Return what the tables say as plain data."""
    told = asdict(value)
    if told["error"] is not None:
        del told["error"]["types"]
    return told


def echo_json(value: Any) -> None:
    click.echo(json_text(value))


def coloured(text: str) -> str:
    colour = COLOURS.get(text.strip())
    return text if colour is None else click.style(text, fg=colour)


def error_in_words(type: str, message: str) -> str:
    """An error by its cause, which comes first: a list cuts what is long at its end."""
    cause = innermost(type, message)
    return f"{cause.type}: {cause.message}" + ("" if cause.name is None else f" (in {cause.name})")


def nth_try(kind: str, number: int) -> str:
    """Name the attempt. Attempts of a workflow are its turns, and say nothing of failures."""
    return f"turn {number}" if kind == "workflow" else str(number)


def size(count: int) -> str:
    """Bytes, roughly."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def local(moment: datetime) -> str:
    """A moment as the clock on the wall shows it, to be found again in other logs."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _is_shown(character: str) -> bool:
    return unicodedata.category(character) not in _UNSHOWN


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
