"""Whole numbers in the range of an integer column."""

from __future__ import annotations

from typing import Any

from stepwell.model.errors import InvalidSetting

MOST = 2**31 - 1
"""The largest value of an integer column."""


def whole(setting: str, value: Any, *, least: int = 1, or_else: str = "") -> int:
    """Return the number if it fits an integer column. Otherwise raise InvalidSetting, which names the setting.

    `or_else` names other values that the setting takes, for the message.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        # A number of a thousand digits would make the message unreadable.
        shown = value if not isinstance(value, int) or abs(value) < 10**30 else "…"
        raise InvalidSetting(setting, shown, f"a whole number from {least} to {MOST}{or_else}")
    return value
