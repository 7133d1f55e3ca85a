"""Rates as users write them: "100/s", "500/min", "10/5m"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from stepwell.model.duration import duration
from stepwell.model.errors import InvalidSetting

_NAMES = {"sec": "1s", "second": "1s", "min": "1m", "minute": "1m", "hour": "1h", "day": "1d"}
_RATE = re.compile(r"(\d{1,9})\s*/\s*(\S+)")


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of `count` in any `period`."""

    count: int
    period: timedelta

    def __str__(self) -> str:
        seconds = self.period.total_seconds()
        unit = next((name for name, size in _SHOWN.items() if size == seconds), f"{seconds:g}s")
        return f"{self.count}/{unit}"

    @classmethod
    def of(cls, value: str, *, setting: str = "rate") -> Rate:
        found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None or int(found[1]) < 1:
            raise InvalidSetting(setting, value, "a rate is a number and a time, such as '100/s', '500/min', '10/5m'")
        length = _NAMES.get(found[2], found[2])
        period = duration(length if length[0].isdigit() else f"1{length}", setting=setting)
        if not timedelta(seconds=0.1) <= period <= timedelta(days=31):
            raise InvalidSetting(setting, value, "the time must be between 0.1 seconds and 31 days")
        return cls(int(found[1]), period)


_SHOWN = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
