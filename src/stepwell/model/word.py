"""What can be said in a transaction, and is heard with its commit."""

from __future__ import annotations

from msgspec import Struct


class Word(Struct, frozen=True):
    channel: str
    text: str
