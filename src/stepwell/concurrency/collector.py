"""The garbage collector, where many objects are made: pauses, and higher thresholds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Run no garbage collection in the block.

    The objects made in such a block are kept. A collection after every few hundred new objects looks through them again
    and again: that took a third of the time of starting many runs. Nor are they looked through as soon as the block
    ends: freeze and unfreeze move them to the oldest generation.

    Blocks may overlap: among those that found the collector on, the first that ends turns it on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # unfreeze would also release objects that others froze on purpose
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def collect_seldom() -> None:
    """Collect garbage after every 100,000 objects that are made and stay, not after every 700, and never look through
    the objects that exist now.

    Only for processes of our own. A worker makes some hundred objects for each run, and nearly all of them are freed by
    their reference count. Looking for cycles among them so often took a tenth of its time.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
