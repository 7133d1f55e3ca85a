"""What workflow code must not use is refused where it is used; what is no business of the workflow's goes on."""

# ruff: noqa: ASYNC240, SIM115  # what is opened here is refused

from __future__ import annotations

import asyncio
import functools
import importlib
import io
import linecache
import logging
import os
import pdb
import random
import socket
import subprocess
import sys
import threading
import time
import timeit
import traceback
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stepwell import App, RunFailed
from stepwell.model.errors import NotDurable
from stepwell.replay import guard
from stepwell.replay.calls import known
from stepwell.replay.forbidden import INSTEAD
from stepwell.replay.loop import Loop
from tests.replay import forbidden_calls
from tests.replay.beside_workflow import awaited, called, in_a_generator
from tests.replay.forbidden_calls import ALWAYS, CLOCKS

HERE = Path(__file__)


class Alone:
    """A driver of a loop in which nothing is waited for."""

    evicting = False

    def timer_set(self, timer: Any) -> None: ...

    def timer_cancelled(self, timer: Any) -> None: ...

    def unheard(self, what: str, error: BaseException) -> None: ...


def in_workflow(body: Callable[[], Awaitable[Any]]) -> Any:
    loop = Loop(Alone(), seed=1)  # type: ignore[abstract]
    task = loop.create_task(body())
    loop.run_until_idle(0.0)
    return task.result()


def at_once(fn: Callable[[], Any]) -> Any:
    async def workflow() -> Any:
        return fn()

    return in_workflow(workflow)


def in_a_task(fn: Callable[[], Any]) -> Any:
    async def part() -> Any:
        await asyncio.sleep(0)
        return fn()

    async def workflow() -> Any:
        return await asyncio.create_task(part())

    return in_workflow(workflow)


def by_another_module(fn: Callable[[], Any]) -> Any:
    async def workflow() -> Any:
        return called(fn)

    return in_workflow(workflow)


def by_a_coroutine_of_another_module(fn: Callable[[], Any]) -> Any:
    return in_workflow(lambda: awaited(fn))


def in_an_async_generator(fn: Callable[[], Any]) -> Any:
    return in_workflow(lambda: in_a_generator(fn))


WAYS = (at_once, in_a_task, by_another_module, by_a_coroutine_of_another_module, in_an_async_generator)
Way = Callable[[Callable[[], Any]], Any]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def strict() -> Iterator[None]:
    before = guard.is_strict()
    guard.strict()
    yield
    guard.strict(before)


@pytest.fixture
def not_strict() -> Iterator[None]:
    before = guard.is_strict()
    guard.strict(False)
    yield
    guard.strict(before)


@pytest.mark.parametrize(("what", "call"), ALWAYS.values(), ids=ALWAYS)
def test_a_workflow_cannot_open_anything(what: str, call: Callable[[], Any], way: Way, not_strict: None):
    with pytest.raises(NotDurable) as refused:
        way(call)
    assert refused.value.what == what
    assert refused.value.line.startswith(f"{forbidden_calls.__file__}:")
    assert refused.value.line.endswith(" in <lambda>")
    assert "in a step or a task" in str(refused.value)


@pytest.mark.parametrize(("instead", "call"), CLOCKS.values(), ids=CLOCKS)
def test_when_strict_a_workflow_cannot_ask_for_what_differs_each_time(
    instead: str, call: Callable[[], Any], way: Way, strict: None
):
    with pytest.raises(NotDurable) as refused:
        way(call)
    assert f"Write {instead}" in str(refused.value)
    assert refused.value.line.startswith(f"{forbidden_calls.__file__}:")


@pytest.mark.parametrize("call", [each for name, (_, each) in CLOCKS.items() if name != "sleep"])
def test_when_not_strict_it_may(call: Callable[[], Any], not_strict: None):
    at_once(call)


def test_a_workflow_cannot_block_its_thread_in_a_sleep(way: Way, not_strict: None):
    with pytest.raises(NotDurable, match=r"cannot use time\.sleep\(\).*Write await asyncio\.sleep") as refused:
        way(CLOCKS["sleep"][1])
    assert refused.value.line.startswith(f"{forbidden_calls.__file__}:")


@pytest.mark.parametrize("call", [each for _, each in CLOCKS.values()], ids=CLOCKS)
def test_outside_of_a_workflow_nothing_is_refused(call: Callable[[], Any], strict: None):
    at_once(lambda: None)
    call()
    with open(HERE) as file:
        assert file.readable()


def looked_up(name: str) -> Any:
    module, *parts = name.split(".")
    return functools.reduce(lambda of, part: getattr(of, part, None), parts, importlib.import_module(module))


@pytest.mark.parametrize("name", [name for name in INSTEAD if looked_up(name) is not None])
def test_what_the_list_forbids_is_known_when_it_is_called(name: str):
    """`stepwell check` goes by the names of this list, and the guard by what they stand for."""
    function = looked_up(name)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    of_dates = isinstance(getattr(function, "__self__", None), type)
    assert (
        isinstance(function, type)  # whose __init__ is known
        or (function in known().in_c if code is None else id(code) in known().in_python.keys() | known().of_random)
        or of_dates
    )


# -- what must go on


def logged_to_a_file() -> None:
    written = logging.FileHandler("/dev/null", delay=True)
    written.handle(logging.makeLogRecord({"msg": "from a workflow"}))
    written.close()


def told_where_it_went_wrong() -> None:
    linecache.clearcache()
    try:
        raise ValueError
    except ValueError:
        assert "raise ValueError" in traceback.format_exc()


def imported_late() -> None:
    for name in ("colorsys", "tests.replay.opens_when_imported"):
        sys.modules.pop(name, None)
        importlib.import_module(name)


def warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        linecache.clearcache()
        warnings.warn("careful", stacklevel=1)


def with_own_seed() -> None:
    own = random.Random(7)
    own.shuffle([1, 2])
    assert own.random() < 1


def environment_read() -> None:
    assert os.environ.get("PATH")
    assert os.getenv("PATH")


def made_uuids() -> None:
    assert uuid.uuid5(uuid.NAMESPACE_DNS, "a") != uuid.uuid3(uuid.NAMESPACE_DNS, "a")
    assert uuid.UUID(int=7)


def times_made_of_numbers() -> None:
    assert datetime.fromtimestamp(0, UTC).date() == date(1970, 1, 1)
    assert time.strftime("%Y", time.gmtime(0)) == "1970"
    assert datetime.strptime("1970", "%Y")


class Left:
    def __del__(self) -> None:
        open(HERE).close()


def collected() -> None:
    Left()


ALLOWED: tuple[Callable[[], Any], ...] = (
    logged_to_a_file,
    told_where_it_went_wrong,
    imported_late,
    warned,
    with_own_seed,
    environment_read,
    made_uuids,
    times_made_of_numbers,
    collected,
    lambda: ZoneInfo.no_cache("Europe/Oslo"),
    lambda: "a".encode("cp1140"),
    lambda: logging.getLogger("workflow").warning("a line, with its time"),
    lambda: print("a line"),
    lambda: Path(os.__file__).read_text(),
    lambda: os.fdopen(1, closefd=False),
)


@pytest.mark.parametrize("fn", ALLOWED, ids=lambda fn: fn.__name__)
def test_what_does_not_change_the_workflow_goes_on(fn: Callable[[], Any], way: Way, strict: None):
    way(fn)


def test_asyncio_may_use_its_own_clock(strict: None):
    async def workflow() -> str:
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        return await asyncio.wait_for(asyncio.create_task(awaited(lambda: "done")), 5)

    assert in_workflow(workflow) == "done"


class Stamps(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.stamp = time.time()
        return Path(__file__).exists()


def test_what_logging_calls_is_no_part_of_the_workflow(strict: None):
    log = logging.getLogger("stamped")
    log.addFilter(Stamps())
    at_once(lambda: log.warning("a line"))
    log.filters.clear()


def test_at_the_prompt_of_a_debugger_one_may_ask_for_the_time(strict: None):
    typed, shown = io.StringIO("p time.time()\nc\n"), io.StringIO()
    before = sys.gettrace()
    try:
        at_once(lambda: pdb.Pdb(stdin=typed, stdout=shown, nosigint=True, readrc=False).set_trace())
    finally:
        sys.settrace(before)
    assert "NotDurable" not in shown.getvalue()
    assert "(Pdb) 1" in shown.getvalue()


INSTALLED = """
import time
from pathlib import Path

def on_its_own_account(): return time.time()
def reads_what_it_brought(): return Path(__file__).read_text()
def reads(path): return Path(path).read_text()
async def workflow(): return reads("/etc/hostname")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package that was installed."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "brought_along.py").write_text(INSTALLED)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    yield importlib.import_module("brought_along")
    sys.modules.pop("brought_along")


def test_an_installed_package_may_ask_for_the_time_and_read_what_it_brought(strict: None, installed: Any):
    assert at_once(lambda: installed.on_its_own_account()) == 0  # the workflow's: see test_clocks
    assert "import time" in at_once(lambda: installed.reads_what_it_brought())


def test_an_installed_package_cannot_open_what_the_workflow_asks_it_for(strict: None, installed: Any):
    with pytest.raises(NotDurable, match=r"test_guard\.py:\d+ in <lambda>"):
        at_once(lambda: installed.reads(HERE))


def test_a_workflow_that_was_itself_installed_is_guarded_too(not_strict: None, installed: Any):
    with pytest.raises(NotDurable, match=r"brought_along\.py:\d+ in reads\b"):
        in_workflow(installed.workflow)


@dataclass
class Order:
    id: uuid.UUID = field(default_factory=uuid.uuid4)


def test_a_default_that_is_made_by_a_dataclass_is_the_users_own(strict: None):
    with pytest.raises(NotDurable, match=r"test_guard\.py"):
        at_once(lambda: Order())
    assert at_once(lambda: Order(uuid.UUID(int=7)))


def test_other_threads_do_as_they_like_meanwhile(strict: None):
    asked, answered = threading.Event(), threading.Event()
    told: list[Any] = []

    def beside() -> None:
        asked.wait(10)
        told.extend([time.time(), HERE.read_text(), uuid.uuid4()])
        answered.set()

    other = threading.Thread(target=beside)
    other.start()
    at_once(lambda: (asked.set(), answered.wait(10)))
    other.join()
    assert len(told) == 3


def test_code_that_catches_the_refusal_goes_on_and_is_guarded_in_its_next_turn(strict: None):
    async def workflow() -> str:
        with pytest.raises(NotDurable):
            time.time()
        return "done"

    assert in_workflow(workflow) == "done"
    with pytest.raises(NotDurable):
        at_once(lambda: time.time())


def test_a_profiler_that_is_there_already_stays_and_files_are_still_refused(strict: None):
    def theirs(*_event: Any) -> None: ...

    sys.setprofile(theirs)
    try:
        at_once(lambda: time.time())
        with pytest.raises(NotDurable):
            at_once(lambda: open(HERE))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


def test_a_debuggers_trace_function_stays(strict: None):
    lines: list[int] = []

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        at_once(lambda: None)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert lines


def test_what_talks_through_a_socket_that_was_open_before_is_refused_when_strict(strict: None):
    one, other = socket.socketpair()
    with one, other, pytest.raises(NotDurable, match="sockets"):
        at_once(lambda: one.send(b"x"))


def test_no_profile_function_is_set_unless_strict(not_strict: None):
    assert at_once(sys.getprofile) is None


def test_strict_leaves_no_profile_function_behind(strict: None):
    at_once(lambda: None)
    assert sys.getprofile() is None


@pytest.mark.parametrize(("said", "is_strict"), [("1", True), ("", False), ("0", False)])
def test_the_environment_says_whether_it_is_strict(said: str, is_strict: bool):
    code = "from stepwell.replay import guard; print(guard.is_strict())"
    env = os.environ | {"STEPWELL_STRICT": said}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(is_strict)


@pytest.mark.parametrize(("said", "is_strict"), [("", True), ("0", False)])
def test_tests_are_strict_unless_told_otherwise(said: str, is_strict: bool):
    code = "import stepwell.testing; from stepwell.replay import guard; print(guard.is_strict())"
    env = os.environ | {"STEPWELL_STRICT": said}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(is_strict)


def test_elsewhere_the_guard_costs_next_to_nothing():
    at_once(lambda: None)  # it is installed now
    per_event = min(timeit.repeat(lambda: sys.audit("open", "a", "r", 0), number=20_000, repeat=5)) / 20_000
    assert per_event < 2e-6


async def test_a_run_ends_by_what_was_refused_and_its_steps_may_do_it(app: App, strict: None):
    @app.step
    async def read() -> int:
        return len(HERE.read_text()) + int(time.time())

    @app.workflow
    async def good() -> int:
        return await read()

    @app.workflow
    async def bad() -> int:
        return len(HERE.read_text())

    @app.workflow
    async def late() -> float:
        return time.time()

    async with app.worker():
        assert await (await good.start()).result(10) > 0
        with pytest.raises(RunFailed, match=r"cannot use files.*test_guard\.py:\d+ in bad"):
            await (await bad.start()).result(10)
        with pytest.raises(RunFailed, match=r"cannot use time\.time\(\).*in late.*workflow\.now\(\)"):
            await (await late.start()).result(10)
