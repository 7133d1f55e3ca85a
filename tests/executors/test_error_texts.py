from __future__ import annotations

import executor_bodies as bodies
import pytest
from executor_bodies import defined

from stepwell.executors.base import BodyExited, bounded, code_text, message_text, traceback_text, type_names
from stepwell.executors.thread import ThreadExecutor
from stepwell.model.errors import NotDurable


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_types_are_named_along_the_bases_and_builtins_without_their_module() -> None:
    assert type_names(KeyError("a")) == ("KeyError", "LookupError", "Exception", "BaseException")
    assert type_names(Mute())[0] == f"{__name__}.Mute"


def test_an_error_that_cannot_speak_is_still_told() -> None:
    assert "Mute" in message_text(Mute())
    assert "Mute" in traceback_text(Mute())


@pytest.mark.parametrize("limit", [200, 10_000])
def test_a_bounded_text_keeps_its_head_and_its_tail(limit) -> None:
    text = bounded("head" + "x" * 50_000 + "tail", limit)
    assert len(text) == limit
    assert text.startswith("head")
    assert text.endswith("tail")
    assert "characters left out" in text


async def test_an_exit_tells_the_users_line_before_our_own(threads: ThreadExecutor) -> None:
    body = defined(bodies.leave)
    with pytest.raises(BodyExited) as raised:
        await threads.run(body, body.input(3))
    lines = traceback_text(raised.value).splitlines()
    assert "executor_bodies.py" in lines[1]
    assert lines[-1].endswith("BodyExited: SystemExit: 3")


def test_a_group_of_one_is_told_as_the_error_in_it() -> None:
    error = ExceptionGroup("unhandled", [ExceptionGroup("unhandled too", [bodies.Declined("no money")])])
    assert message_text(error) == "no money"
    assert code_text(error) == "CARD_DECLINED"
    names = type_names(error)
    assert names[:2] == ("executor_bodies.Declined", "ValueError")
    assert "ExceptionGroup" in names, "a retry policy may name it"
    assert "unhandled too" in traceback_text(error)


def test_a_group_of_several_is_told_as_a_group() -> None:
    error = ExceptionGroup("unhandled", [ValueError("one"), KeyError("two")])
    assert message_text(error) == "unhandled (2 sub-exceptions)"
    assert type_names(error)[0] == "ExceptionGroup"


REFUSED = NotDurable("sockets", "shop.py:42 in checkout")


def raised_from(cause: BaseException) -> BaseException:
    try:
        raise ConnectionError("no connection") from cause
    except ConnectionError as error:
        return error


def raised_while(context: BaseException) -> BaseException:
    try:
        try:
            raise context
        except NotDurable:
            raise ConnectionError("no connection")  # noqa: B904  # that it does not say from whom is the point
    except ConnectionError as error:
        return error


WRAPPED = {
    "its cause": (raised_from(REFUSED), "ConnectionError: no connection"),
    "its context": (raised_while(REFUSED), "ConnectionError: no connection"),
    "one of several": (ExceptionGroup("all", [ValueError("a"), REFUSED]), "ExceptionGroup: all (2 sub-exceptions)"),
    "one of the several that caused it": (
        raised_from(ExceptionGroup("all", [ValueError("a"), REFUSED])),
        "ConnectionError: no connection",
    ),
}


@pytest.mark.parametrize(("error", "led_to"), WRAPPED.values(), ids=WRAPPED)
def test_what_was_not_durable_is_told_first_whatever_it_led_to(error: BaseException, led_to: str) -> None:
    assert message_text(error) == f"{REFUSED} It led to {led_to}"
    names = type_names(error)
    assert names[0] == "stepwell.NotDurable"
    assert led_to.split(":")[0] in names


def test_an_error_that_is_raised_from_nothing_has_no_cause_to_tell() -> None:
    error = raised_while(REFUSED)
    error.__suppress_context__ = True
    assert message_text(error) == "no connection"


def test_errors_that_lead_to_one_another_are_told() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert message_text(one) == "one"
