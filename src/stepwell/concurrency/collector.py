"""The garbage collector, where many objects are made: pauses for it, and longer ways between its rounds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection in the block. What is made there is kept: to look through it again and again, as a collection
    does for every few hundred new objects, took a third of the time that starting many runs took. Nor is it looked
    through as soon as the block ends: it counts as old then, as if it had been frozen and let go.

    Blocks may overlap: the first that ends, of those that found it on, turns it on again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # else it would let go what someone means to keep frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def collect_seldom() -> None:
    """Collect garbage after every hundred thousand objects that are made and stay, not after every seven hundred, and
    never look through what there is now again. Only in a process of ours: a worker makes some hundred objects for each
    run, and nearly all are freed by their reference count; to look for cycles among them so often took a tenth of its
    time."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
