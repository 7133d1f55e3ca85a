from __future__ import annotations

import copy
import pickle
from typing import Any
from uuid import uuid4

import pytest

from stepwell import Fatal, InvalidSetting, KeyConflict, RunError, RunFailed, Snooze, UnknownName, WrongUse


def test_the_docstring_is_the_message_and_the_fields_are_its_facts() -> None:
    run_id = uuid4()
    assert str(KeyConflict("order-7", run_id)) == (
        f"The key 'order-7' belongs to run {run_id}, which was started with another name or input. "
        "Use another key, or start it with the same input."
    )


def test_what_stands_in_a_fact_is_never_read_as_a_format() -> None:
    assert str(WrongUse("{nothing} {0!r}")) == "{nothing} {0!r}"
    assert "{value}" in str(InvalidSetting("queue", "{value}", "{reason}"))


def test_an_optional_fact_may_be_left_out() -> None:
    assert str(UnknownName("shop.charge")) == "No definition is called 'shop.charge' here."


def test_a_failed_run_tells_all_that_is_known_after_pickling() -> None:
    facts: dict[str, Any] = {
        "run_id": uuid4(), "name": "shop.charge", "attempt": 3, "type": "Declined", "message": "no {money}",
        "reason": "raised", "code": "CARD_DECLINED", "traceback": "Traceback …",
    }  # fmt: skip
    error = pickle.loads(pickle.dumps(RunFailed(**facts)))
    assert error.facts() == facts
    assert "failed at attempt 3 (raised): Declined: no {money}" in str(error)


@pytest.mark.parametrize("how", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_what_a_body_raises_survives_the_way_between_processes(how: Any) -> None:
    declined, snooze, fatal = how(RunError("no", code="DECLINED")), how(Snooze("5m")), how(Fatal("never"))
    assert (str(declined), declined.code) == ("no", "DECLINED")
    assert snooze.delay == Snooze(300).delay
    assert str(fatal) == "never"


def test_a_snooze_of_nonsense_is_refused_where_it_is_raised() -> None:
    with pytest.raises(InvalidSetting, match="Snooze"):
        Snooze("soon")
