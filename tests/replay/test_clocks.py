"""Clocks that libraries read stand where the workflow stands, while its code runs, and nowhere else."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.model.errors import NotDurable
from stepwell.replay import clocks, guard
from tests.replay.driver import World, step

CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
REAL = {name: getattr(time, name) for name in (*CLOCKS, "sleep")}

LIBRARY = """
import datetime
import time
from time import monotonic

LOADED = time.time()

def read(name): return getattr(time, name)()
def all(): return [time.time(), time.time_ns(), time.monotonic(), time.monotonic_ns(), time.perf_counter(),
                   time.perf_counter_ns()]
def bound_when_imported(): return monotonic()
def by_datetime(): return datetime.datetime.now()
def by_date(): return datetime.date.today()
def sleeps(): time.sleep(0)
async def waits_for(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package that was installed."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "ticking.py").write_text(LIBRARY)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    yield importlib.import_module("ticking")
    sys.modules.pop("ticking", None)


@pytest.fixture(params=[False, True], ids=["as in production", "strict"])
def strict(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = guard.is_strict()
    guard.strict(request.param)
    yield request.param
    guard.strict(before)


@pytest.fixture
def not_strict() -> Iterator[None]:
    before = guard.is_strict()
    guard.strict(False)
    yield
    guard.strict(before)


@pytest.fixture
def when_strict() -> Iterator[None]:
    before = guard.is_strict()
    guard.strict()
    yield
    guard.strict(before)


def test_what_a_library_reads_is_the_workflows_time_in_every_replay(library: Any, strict: bool) -> None:
    async def workflow() -> Any:
        first = library.all()
        await asyncio.sleep(90)
        return [first, library.all(), asyncio.get_running_loop().time()]

    told = World().run(workflow)  # and again, in every way
    first, then, loop_time = told.result
    began, ended = told.history[0].at, told.history[-1].at
    assert first == [began.timestamp(), round(began.timestamp() * 1e6) * 1000, 0.0, 0, 0.0, 0]
    assert (ended - began).total_seconds() == loop_time == 90.0
    assert then == [ended.timestamp(), first[1] + 90 * 10**9, 90.0, 90 * 10**9, 90.0, 90 * 10**9]


def test_in_production_a_line_of_the_users_reads_the_same(library: Any, not_strict: None) -> None:
    async def workflow() -> Any:
        await asyncio.sleep(90)
        return [time.time(), time.monotonic(), library.read("time"), library.read("monotonic")]

    told = World().run(workflow)
    assert told.result == [told.history[-1].at.timestamp(), 90.0] * 2


def test_a_line_in_a_log_has_the_real_time(strict: bool) -> None:
    records: list[logging.LogRecord] = []
    log = logging.getLogger("told.in.a.workflow")
    log.addFilter(lambda record: not records.append(record))

    async def workflow() -> None:
        log.warning("a line")

    before = time.time()
    World().run(workflow, check=False)
    assert before <= records[0].created <= time.time()
    log.filters.clear()


def test_a_library_that_is_imported_by_workflow_code_has_the_real_time(library: Any, strict: bool) -> None:
    async def workflow() -> float:
        sys.modules.pop("ticking")
        import ticking  # type: ignore[import-not-found]

        loaded: float = ticking.LOADED
        return loaded

    before = time.time()
    assert before <= World().run(workflow, check=False).result <= time.time()


def test_other_threads_have_the_real_time_meanwhile(strict: bool) -> None:
    asked, answered = threading.Event(), threading.Event()
    told: list[float] = []

    def beside() -> None:
        asked.wait(10)
        told.append(time.time())
        time.sleep(0)
        answered.set()

    async def workflow() -> None:
        asked.set()
        answered.wait(10)

    other = threading.Thread(target=beside)
    other.start()
    before = time.time()
    World().run(workflow, check=False)
    other.join()
    assert before <= told[0] <= time.time()


def test_elsewhere_the_clocks_are_pythons_own() -> None:
    async def fails() -> None:
        raise ValueError

    World().run(fails, check=False)
    assert {name: getattr(time, name) for name in REAL} == REAL


def test_a_clock_that_someone_else_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen() -> float:
        return 1.0

    async def workflow() -> None:
        time.time = frozen

    try:
        World().run(workflow, check=False)
        assert time.time is frozen
        assert time.monotonic is REAL["monotonic"]
    finally:
        time.time = REAL["time"]


def test_a_clock_that_someone_had_set_before_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen() -> float:
        return 1.0

    async def workflow() -> None: ...

    monkeypatch.setattr(time, "time", frozen)
    World().run(workflow, check=False)
    assert time.time is frozen


@pytest.mark.parametrize("how", ["bound_when_imported", "by_datetime", "by_date"])
def test_when_strict_a_clock_that_a_library_reads_past_us_is_named_with_the_library(
    library: Any, how: str, when_strict: None
) -> None:
    async def workflow() -> str:
        with pytest.raises(NotDurable) as refused:
            getattr(library, how)()
        return str(refused.value)

    said = World().run(workflow).result
    assert "(), which ticking calls" in said
    assert "test_clocks.py" in said
    assert "workflow.now()" in said
    assert "time.monotonic()" in said


def test_a_clock_that_a_library_reads_past_us_costs_production_nothing(library: Any, not_strict: None) -> None:
    async def workflow() -> None:
        assert library.by_datetime().year > 2000

    World().run(workflow, check=False)


def test_sleep_is_refused_to_libraries_too(library: Any, strict: bool) -> None:
    async def workflow() -> str:
        with pytest.raises(NotDurable) as refused:
            library.sleeps()
        return str(refused.value)

    assert "await asyncio.sleep(…)" in World().run(workflow).result


def test_code_that_waits_for_a_clock_to_go_on_is_told_so(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "MANY", 1000)

    async def workflow() -> str:
        with pytest.raises(NotDurable) as refused:
            await library.waits_for(1)
        return str(refused.value)

    said = World().run(workflow).result
    assert "a loop that waits for time.monotonic()" in said
    assert "await asyncio.sleep(…)" in said


def test_many_events_may_each_ask_for_the_time(monkeypatch: pytest.MonkeyPatch, not_strict: None) -> None:
    monkeypatch.setattr(clocks, "MANY", 20)

    async def workflow() -> int:
        for number in range(30):
            time.monotonic()
            await step(str(number))
        return 30

    assert World().run(workflow).result == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_process_that_forks_off_meanwhile_has_pythons_own_clocks() -> None:
    read, write = os.pipe()
    clocks.stand_still()
    try:
        child = os.fork()
        if not child:
            os.write(write, str({name: getattr(time, name) for name in REAL} == REAL).encode())
            os._exit(0)
    finally:
        clocks.go_on()
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"True"
    os.close(read)
    os.close(write)


def test_where_no_workflow_code_runs_a_clock_costs_what_it_did() -> None:
    async def workflow() -> None: ...

    World().run(workflow)
    assert time.monotonic is REAL["monotonic"]
    each = min(timeit.repeat(lambda: (clocks.stand_still(), clocks.go_on()), number=2000, repeat=5)) / 2000
    assert each < 20e-6
