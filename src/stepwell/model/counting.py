"""Whole numbers as the tables take them."""

from __future__ import annotations

from typing import Any

from stepwell.model.errors import InvalidSetting

MOST = 2**31 - 1
"""The largest integer of a column."""


def whole(setting: str, value: Any, *, least: int = 1, or_else: str = "") -> int:
    """The number, if a column takes it; InvalidSetting names the setting otherwise, and what else it may be."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        # A number of a thousand digits is not shown.
        shown = value if not isinstance(value, int) or abs(value) < 10**30 else "…"
        raise InvalidSetting(setting, shown, f"a whole number from {least} to {MOST}{or_else}")
    return value
