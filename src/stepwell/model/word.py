"""What can be said in a transaction, and is heard with its commit; or ahead of what it speaks of.

A word that goes ahead may be heard too soon. Whoever finds nothing asks again, for longer than AHEAD; and whoever took
longer than that to make it true says it once more.
"""

from __future__ import annotations

from msgspec import Struct

AHEAD = 0.1
"""Seconds by which a word may go ahead of what it speaks of."""
AGAIN = (0.001, 0.02, 0.2)
"""Seconds from a question that found nothing to the next."""


class Word(Struct, frozen=True):
    channel: str
    text: str
