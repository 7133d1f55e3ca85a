"""Notifications that a statement sends itself, so that listeners receive them with its commit."""

from __future__ import annotations

from msgspec import Struct


class Word(Struct, frozen=True):
    """A notification sent by a statement."""

    channel: str
    text: str
