"""Where a history may be cut, and what was under way there."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from stepwell.model.errors import InvalidSetting
from stepwell.model.events import Event, EventType
from stepwell.model.forks import cut, last_good

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def history(*types: str) -> list[Event]:
    """Events from their types; `TaskScheduled 3` is the command 3, and starts the run 3."""
    events = []
    for idx, text in enumerate(types, 1):
        type, _, number = text.partition(" ")
        run = UUID(int=int(number)) if number else None
        events.append(Event(idx, EventType(type), NOW, int(number) if number else None, run_id=run, when=NOW))
    return events


PLAIN = history(
    "WorkflowStarted",
    "TaskScheduled 1",
    "TimerScheduled 2",
    "TaskCompleted 1",
    "StatePublished 3",
    "SignalReceived",
    "ChildStarted 4",
    "WorkflowFailed",
)


@pytest.mark.parametrize(
    ("at", "last"), [(0, 0), (1, 0), (2, 0), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7)], ids=lambda each: str(each)
)
def test_a_cut_is_at_the_end_of_a_whole_part(at: int, last: int) -> None:
    assert cut(PLAIN, at).last == last


@pytest.mark.parametrize("at", [-1, 9, True, "3", 2.0])
def test_what_is_no_event_is_refused(at: object) -> None:
    with pytest.raises(InvalidSetting, match="1 to 8"):
        cut(PLAIN, at)  # type: ignore[arg-type]


def test_nothing_goes_on_from_an_end_but_from_a_continuation() -> None:
    with pytest.raises(InvalidSetting, match="is its end, WorkflowFailed"):
        cut(PLAIN, 8)
    continued = history("WorkflowStarted", "TaskScheduled 1", "ContinuedAsNew", "SignalReceived")
    found = cut(continued, 3)
    assert (found.last, found.runs) == (3, [])
    assert found.begun is not None
    assert found.begun.idx == 3


def test_what_had_not_ended_was_under_way() -> None:
    at_three, at_five, at_seven = (cut(PLAIN, at) for at in (3, 5, 7))
    assert [event.command for event in at_three.runs] == [1]
    assert [event.command for event in at_three.timers] == [2]
    assert at_three.published is None
    assert at_five.runs == []
    assert at_five.published is not None
    assert at_five.published.idx == 5
    assert [event.command for event in at_seven.runs] == [4]


def test_what_was_cancelled_or_fired_was_not() -> None:
    events = history(
        "WorkflowStarted", "TaskScheduled 1", "ChildStarted 2", "TimerScheduled 3", "TimerFired 3", "TaskCancelled 1"
    )
    found = cut(events, 6)
    assert [event.command for event in found.runs] == [2]
    assert found.timers == []


@pytest.mark.parametrize(
    ("events", "good"),
    [
        (["WorkflowStarted", "TaskScheduled 1", "TaskFailed 1", "WorkflowFailed"], 2),
        (["WorkflowStarted", "ChildStarted 1", "ChildFailed 1", "WorkflowFailed"], 2),
        (["WorkflowStarted", "StepFailed 1", "WorkflowFailed"], 1),
        (["WorkflowStarted", "TimerScheduled 1", "SignalTimedOut 1", "WorkflowFailed"], 2),
        # Those that were with it are cancelled upon it.
        (
            [
                "WorkflowStarted",
                "TaskScheduled 1",
                "TaskScheduled 2",
                "TaskFailed 1",
                "TaskCancelled 2",
                "WorkflowFailed",
            ],
            3,
        ),
        # It went on after the bad news, and failed upon something else.
        (
            [
                "WorkflowStarted",
                "TaskScheduled 1",
                "TaskFailed 1",
                "TaskScheduled 2",
                "TaskCompleted 2",
                "WorkflowFailed",
            ],
            5,
        ),
        (["WorkflowStarted", "WorkflowFailed"], 1),
        (["WorkflowStarted", "TimerScheduled 1", "WorkflowTimedOut"], 2),
        (["WorkflowTimedOut"], 0),
        ([], 0),
    ],
)
def test_the_last_good_point_is_before_the_bad_news_or_before_the_end(events: list[str], good: int) -> None:
    found = last_good(history(*events))
    assert found == good
    assert cut(history(*events), found).last == good
