"""What can be said in a transaction, and is heard with its commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    channel: str
    text: str
