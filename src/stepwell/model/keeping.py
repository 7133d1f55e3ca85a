"""Retention of finished runs that differs from the default."""

from __future__ import annotations

from typing import Any, Literal

from stepwell.model.errors import InvalidSetting

Keeping = Literal["none", "forever"]


def checked_keep(keep: Any) -> None:
    if keep not in (None, "none", "forever"):
        raise InvalidSetting("keep", keep, "'none', 'forever', or None for the default retention")
