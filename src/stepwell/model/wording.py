"""Render times, durations and lists as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

SHOWN = 5
"""The number of items that a rendered list names; the facts contain more."""
_AGES = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def length(time: timedelta) -> str:
    """Render a duration by its two largest units: 3 d 4 h, 2 min 5 s, 0.4 s."""
    seconds = abs(time.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size} {unit}")
            left %= size
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def age(seconds: float) -> str:
    """A length of time, roughly: 12s, 5m, 3h, 2d."""
    for size, unit in _AGES:
        if abs(seconds) >= size:
            return f"{seconds / size:.0f}{unit}"
    return "0s"


def ahead(time: timedelta) -> str:
    return f"in {length(time)}"


def ago(time: timedelta) -> str:
    return f"{length(time)} ago"


def since(time: timedelta) -> str:
    return f"for {length(time)}"


def nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def near(name: str, others: Iterable[str]) -> str | None:
    """Return the name among `others` that was most likely meant; None if none is similar."""
    alike, folded = {_folded(other): other for other in others if other != name}, _folded(name)
    swapped = [other for other in alike if sorted(other) == sorted(folded)]
    found = swapped or get_close_matches(folded, alike, n=1, cutoff=0.75)
    return alike[found[0]] if found else None


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_").replace(".", "_")


def among(things: Sequence[object], *, of: int | None = None) -> str:
    """List the first items by name, and the number of the rest."""
    shown = ", ".join(str(each) for each in things[:SHOWN])
    more = max(len(things), of or 0) - min(len(things), SHOWN)
    return f"{shown} and {more} more" if more > 0 else shown
