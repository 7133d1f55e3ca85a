"""What a pause of the garbage collector leaves behind: nothing that the process notices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from stepwell.concurrency.collector import uncollected


class Circle:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """The generations that were looked through."""
    seen: list[int] = []

    def look(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            seen.append(about["generation"])

    gc.collect()
    gc.callbacks.append(look)
    yield seen
    gc.callbacks.remove(look)


def test_what_is_made_in_a_pause_is_not_looked_through_as_it_ends(looks: list[int]) -> None:
    with uncollected():
        made = [[each] for each in range(50_000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    few = [[each] for each in range(100)]
    assert looks == []
    assert len(made) + len(few) == 50_100


def test_a_circle_made_in_a_pause_is_found_later() -> None:
    with uncollected():
        made = weakref.ref(Circle())
    assert made() is not None
    gc.collect()
    assert made() is None


def test_what_is_frozen_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with uncollected():
            made = [[each] for each in range(10)]
        assert gc.get_freeze_count() == before > 0
        assert made
    finally:
        gc.unfreeze()


def test_who_had_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
