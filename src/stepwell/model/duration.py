"""Durations as users write them: seconds, a timedelta, or text such as "30s", "5m", "1h30m"."""

from __future__ import annotations

import re
from datetime import timedelta

from stepwell.model.errors import InvalidSetting

Duration = int | float | timedelta | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_LONGEST = timedelta(days=36_500)


def duration(value: Duration, *, setting: str) -> timedelta:
    """Return the timedelta that `value` means. Otherwise raise InvalidSetting, which names `setting`."""
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= _LONGEST.total_seconds():
        raise InvalidSetting(
            setting,
            value,
            "a duration is seconds, a timedelta or text such as '30s', '5m', '2h', '1d', not negative, below a century",
        )
    return timedelta(seconds=seconds)


def _seconds(value: object) -> float | None:
    match value:
        case bool():
            return None
        case int():
            return min(value, _LONGEST.total_seconds() + 1)  # an int may be too large for a float
        case float():
            return value
        case timedelta():
            return value.total_seconds()
        case str():
            return _spelled(value.strip())
        case _:
            return None


def _spelled(text: str) -> float | None:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
