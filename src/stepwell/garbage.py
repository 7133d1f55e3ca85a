"""A pause for the garbage collector, where many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection in the block. What is made there is kept: to look through it again and again, as a collection
    does for every few hundred new objects, took a third of the time that starting many runs took.

    Blocks may overlap: the first that ends, of those that found it on, turns it on again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
