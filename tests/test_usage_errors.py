"""Mistakes in calls and decorators: each is refused where it is made, and the error names the remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from stepwell import App, Call, InvalidSetting, Retry, UsageError, WrongUse, current

app = App("postgresql:///never-opened")


async def charge(cents: int) -> int:
    return cents


class Shop:
    async def charge(self, cents: int) -> int:
        return cents

    @classmethod
    async def refund(cls, cents: int) -> int:
        return cents

    @staticmethod
    def price(cents: int) -> int:
        return cents


TASK = app.task(charge)
ANY: Any = app
"""The app without its types: what is tried here does not pass a type checker."""

MISSPELT: dict[str, tuple[Callable[[], Any], str, str]] = {
    "task": (lambda: ANY.task(retires=3), "retires", "retry"),
    "task, by another system's word": (lambda: ANY.task(max_retries=3), "max_retries", "retry"),
    "workflow": (lambda: ANY.workflow(time_out=3), "time_out", "timeout"),
    "step": (lambda: ANY.step(retrys=3), "retrys", "retry"),
    "options": (lambda: TASK.options(**{"prioritty": 3}), "prioritty", "priority"),
    "options, by another system's word": (lambda: TASK.options(**{"countdown": 3}), "countdown", "delay"),
    "options by name": (lambda: app.definition("shop.charge").options(qeue="mail"), "qeue", "queue"),
    "app": (lambda: App(**{"dns": "postgresql:///x"}), "dns", "dsn"),
    "worker": (lambda: ANY.worker(queue=["mail"]), "queue", "queues"),
    "worker, by another system's word": (lambda: ANY.worker(concurrency=4), "concurrency", "slots"),
    "retry": (lambda: Retry(**{"attempt": 3}), "attempt", "attempts"),
    "queue": (lambda: ANY.queue("mail").set(concurency=3), "concurency", "concurrency"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_option_is_refused_with_the_one_that_was_meant(name: str) -> None:
    call, typed, meant = MISSPELT[name]
    with pytest.raises(WrongUse, match=rf"has no option '{typed}'. Did you mean {meant}=\?.*Its options are .*{meant}"):
        call()


def test_an_option_that_is_near_to_none_is_refused_with_the_list() -> None:
    with pytest.raises(WrongUse, match=r"^App\.task\(\) has no option 'xyz'\. Its options are deadline, ") as raised:
        ANY.task(xyz=1)
    assert "self" not in str(raised.value)


BARE_TEXTS: dict[str, tuple[Callable[[App], Any], str]] = {
    "queues of a worker": (lambda app: app.worker(queues="mail").__aenter__(), r"write \['mail'\]"),
    "queues as bytes": (lambda app: app.worker(queues=b"mail").__aenter__(), "must be a list of names"),  # type: ignore[arg-type]
    "queues as a number": (lambda app: app.worker(queues=5).__aenter__(), "must be a list of names"),  # type: ignore[arg-type]
    "ids of workers": (lambda app: app.workers(ids="0190"), r"write \['0190'\]"),  # type: ignore[arg-type]
    "one id of a worker": (lambda app: app.workers(ids=UUID(int=7)), r"write \['0000"),  # type: ignore[arg-type]
    "ids that are none": (lambda app: app.workers(ids=["0190"]), "each a UUID"),  # type: ignore[list-item]
    "tags of a list": (lambda app: app.runs(tags="tenant"), "must be a mapping"),  # type: ignore[arg-type]
    "no tags of a list": (lambda app: app.runs(tags=""), "must be a mapping"),  # type: ignore[arg-type]
    "states of a list": (lambda app: app.runs(state=5), "one of scheduled"),  # type: ignore[arg-type]
    "the page that follows": (lambda app: app.runs(after="abc"), "the id of a run"),
    "calls": (lambda app: app.task(charge).start_many("abc"), "a tuple of arguments, or a Call"),  # type: ignore[arg-type]
}
BARE_TEXTS_AT_ONCE: dict[str, tuple[Callable[[], Any], str]] = {
    "arguments of a call": (lambda: Call("abc"), r"must be a tuple of arguments: write Call\(\(value,\)\)"),  # type: ignore[arg-type]
    "named arguments of a call": (lambda: Call((), "abc"), "must be a mapping"),  # type: ignore[arg-type]
    "options of a call": (lambda: Call((), {}, "abc"), "must be a mapping"),  # type: ignore[arg-type]
    "tags": (lambda: TASK.options(tags="tenant"), "must be a mapping"),  # type: ignore[arg-type]
    "no tags": (lambda: TASK.options(tags=""), "must be a mapping"),  # type: ignore[arg-type]
    "tags by a decorator": (lambda: app.task(tags="tenant"), "must be a mapping"),  # type: ignore[call-overload]
    "delays": (lambda: Retry(backoff="1s"), "a list of delays"),  # type: ignore[arg-type]
    "delays as bytes": (lambda: Retry(backoff=b"12"), "a list of delays"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BARE_TEXTS)
async def test_a_bare_text_in_place_of_a_list_is_refused_and_not_taken_for_its_letters(app: App, name: str) -> None:
    call, why = BARE_TEXTS[name]
    with pytest.raises(InvalidSetting, match=why):
        await call(app)


@pytest.mark.parametrize("name", BARE_TEXTS_AT_ONCE)
def test_a_bare_text_in_place_of_a_list_or_mapping_is_refused_at_the_call(name: str) -> None:
    call, why = BARE_TEXTS_AT_ONCE[name]
    with pytest.raises(InvalidSetting, match=why):
        call()


HUGE = 10**19
TOO_LARGE: dict[str, Callable[[App], Any]] = {
    "slots": lambda app: app.worker(slots=HUGE).__aenter__(),
    "per_key of a task": lambda app: app.task(limit_by=lambda _: "x", per_key=HUGE)(charge),
    "per_key of a start": lambda app: app.definition("x").options(limit_by=lambda _: "x", per_key=2**31),
    "concurrency": lambda app: app.queue("mail").set(concurrency=2**31),
    "per_key of a queue": lambda app: app.queue("mail").set(per_key=HUGE),
    "rate": lambda app: app.queue("mail").set(rate=f"{HUGE}/s"),
    "priority": lambda app: app.definition("x").options(priority=HUGE),
    "attempts": lambda _: Retry(attempts=HUGE),
    "delay": lambda app: app.definition("x").options(delay=10**12),
    "delay of a retry": lambda _: Retry(delay=HUGE),
    "timeout": lambda app: app.definition("x").options(timeout=10**400),
    "limit of a list": lambda app: app.runs(limit=HUGE),
    "event of a fork": lambda app: app.run(UUID(int=7)).fork(HUGE),
    "attempt of a log": lambda app: app.run(UUID(int=7)).logs(HUGE),
    "a number of many digits": lambda app: app.queue("mail").set(concurrency=10**5000),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_number_that_no_column_takes_is_refused_at_the_call(app: App, name: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        await TOO_LARGE[name](app)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
async def test_text_that_cannot_be_stored_is_refused_wherever_it_is_given(app: App, text: str) -> None:
    for ask in (
        lambda: app.run(text).info(),
        lambda: app.runs(name=text),
        lambda: app.runs(error=text),
        lambda: app.runs(tags={"a": text}),
        lambda: app.run(UUID(int=7)).signal(text),
        lambda: app.run(UUID(int=7)).update(text),
    ):
        with pytest.raises(UsageError):
            await ask()


@pytest.mark.parametrize("fn", [Shop.charge, Shop().charge, Shop.refund], ids=["method", "bound", "classmethod"])
@pytest.mark.parametrize("kind", ["task", "workflow", "step"])
def test_a_method_is_refused_as_a_definition(fn: Any, kind: str) -> None:
    with pytest.raises(WrongUse, match=rf"Shop\.\w+ is a method: .* Make the {kind} a function at the top level"):
        getattr(ANY, kind)(fn)


def test_a_static_method_is_a_function() -> None:
    assert app.task(Shop.price).name.endswith("Shop.price")


async def test_what_is_for_tasks_names_the_step_when_a_workflow_asks_for_it(app: App) -> None:
    @app.workflow
    async def pays() -> str:
        try:
            async with current.tx():
                return "no error"
        except WrongUse as error:
            return str(error)

    async with app.worker():
        said = await (await pays.start()).result(timeout=30)
    assert said.startswith("current.tx() works in tasks and steps only")
    assert "@app.step" in said


def test_a_process_task_of_an_interactive_session_is_refused_at_the_decorator() -> None:
    session = (
        "from stepwell import App\n"
        "app = App('postgresql:///never-opened')\n"
        "def resize(width: int) -> int: return width\n"
        "\n"
        "app.task(executor='process')(resize)\n"
    )
    for arguments in (["-"], ["-c", session]):
        ran = subprocess.run([sys.executable, *arguments], input=session, capture_output=True, text=True, timeout=60)
        assert "it is defined in an interactive session: move it to a file" in ran.stderr, ran.stderr


def test_an_interactive_session_that_names_a_file_is_still_one() -> None:
    """The REPLs of Python 3.13 and of IPython set `__file__` of `__main__`."""
    session = (
        f"__file__ = {__file__!r}\n"
        "from stepwell import App\n"
        "app = App('postgresql:///never-opened')\n"
        "exec(compile('def resize(width: int) -> int: return width', '<python-input-3>', 'exec'))\n"
        "app.task(executor='process')(resize)\n"
    )
    ran = subprocess.run([sys.executable, "-c", session], capture_output=True, text=True, timeout=60)
    assert "it is defined in an interactive session: move it to a file" in ran.stderr, ran.stderr
