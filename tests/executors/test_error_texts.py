from __future__ import annotations

import executor_bodies as bodies
import pytest
from executor_bodies import defined

from stepwell.executors.base import BodyExited, bounded, message_text, traceback_text, type_names
from stepwell.executors.thread import ThreadExecutor


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
