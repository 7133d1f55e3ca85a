from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import InvalidSetting, Retry
from stepwell.model.raised import SHORTEST
from stepwell.model.run import Error, Reason
from tests.model.policies import POLICIES


class Declined(ValueError):
    pass


def error(kind: type[BaseException] = ValueError, code: str | None = None, reason: Reason = Reason.RAISED) -> Error:
    names = tuple(
        each.__qualname__ if each.__module__ == "builtins" else f"{each.__module__}.{each.__qualname__}"
        for each in kind.__mro__
    )
    return Error(names[0], "boom", reason, code=code, types=names)


def delays(policy: Retry, times: int, noise: float = 0.5) -> list[float | None]:
    found = (policy.delay_after(error(), failures=n, noise=noise) for n in range(1, times + 1))
    return [None if delay is None else delay.total_seconds() for delay in found]


def test_attempts_count_the_first_one() -> None:
    assert delays(Retry(attempts=1), 1) == [None]
    assert delays(Retry(attempts=3), 4) == [1, 2, None, None]


def test_an_exponential_back_off_doubles_up_to_its_cap() -> None:
    assert delays(Retry(attempts=9, delay="2s", max_delay="1m"), 7) == [2, 4, 8, 16, 32, 60, 60]
    assert delays(Retry(attempts=9, delay=1, factor=3), 3) == [1, 3, 9]


def test_a_fixed_back_off_stays_and_keeps_to_the_cap() -> None:
    assert delays(Retry(attempts=9, backoff="fixed", delay=7), 3) == [7, 7, 7]
    assert delays(Retry(attempts=9, backoff="fixed", delay=7, max_delay=5), 2) == [5, 5]


@pytest.mark.parametrize("listed", [[1, 10, 60], (1, "10s", timedelta(minutes=1))])
def test_listed_delays_are_used_in_turn_and_the_last_repeats(listed: Any) -> None:
    assert delays(Retry(attempts=9, backoff=listed), 5) == [1, 10, 60, 60, 60]


@pytest.mark.parametrize("factor", [1, 1.0001, 2, 10, 1e300])
def test_the_most_patient_policy_does_not_overflow(factor: float) -> None:
    policy = Retry(attempts=1_000_000, factor=factor, max_delay=300, jitter=0)
    assert policy.delay_after(error(), failures=999_999, noise=0.5) in (timedelta(seconds=1), timedelta(minutes=5))
    assert Retry(attempts=10**9, delay=0, factor=factor).delay_after(error(), failures=10**8, noise=0) == SHORTEST


@pytest.mark.parametrize("policy", [Retry(delay=0), Retry(max_delay=0), Retry(backoff=[0]), Retry(backoff=["1ms"])])
def test_ten_attempts_may_follow_at_once_and_no_policy_spins(policy: Retry) -> None:
    patient = replace(policy, attempts=10**6)
    delays = [patient.delay_after(error(), failures=number, noise=0.5) for number in range(1, 30)]
    assert max(each or timedelta(0) for each in delays[:9]) < SHORTEST
    assert set(delays[9:]) == {SHORTEST}


@given(POLICIES, st.integers(1, 60), st.floats(0, 1))
def test_jitter_spreads_a_delay_by_no_more_than_its_share(policy: Retry, failures: int, noise: float) -> None:
    middle = policy.delay_after(error(), failures=failures, noise=0.5)
    spread = policy.delay_after(error(), failures=failures, noise=noise)
    if middle is None or spread is None:
        assert middle is spread is None
        return
    assert abs((spread - middle).total_seconds()) <= policy.jitter * middle.total_seconds() + 1e-5


def test_on_names_what_is_retried_and_nothing_else_is() -> None:
    policy = Retry(on=(ConnectionError, "DECLINED"))
    assert policy.delay_after(error(ConnectionResetError), failures=1, noise=0.5) is not None
    assert policy.delay_after(error(ValueError, code="DECLINED"), failures=1, noise=0.5) is not None
    assert policy.delay_after(error(ValueError), failures=1, noise=0.5) is None


def test_never_wins_over_on_and_covers_subclasses() -> None:
    policy = Retry(on=Exception, never=[ValueError, "STOP"])
    assert policy.delay_after(error(Declined), failures=1, noise=0.5) is None
    assert policy.delay_after(error(KeyError, code="STOP"), failures=1, noise=0.5) is None
    assert policy.delay_after(error(KeyError), failures=1, noise=0.5) is not None


def test_a_class_is_known_by_its_qualified_name_where_its_code_is_not() -> None:
    by_class, by_name = Retry(on=Declined), Retry(on=f"{__name__}.Declined")
    assert by_class == by_name
    assert by_name.delay_after(error(Declined), failures=1, noise=0.5) is not None


def test_giving_up_is_final_whatever_the_policy() -> None:
    gave_up = error(reason=Reason.GAVE_UP)
    assert Retry(attempts=99, on=ValueError).delay_after(gave_up, failures=1, noise=0.5) is None


def test_a_timeout_is_a_failure_like_another() -> None:
    assert Retry().delay_after(error(TimeoutError, reason=Reason.TIMED_OUT), failures=1, noise=0.5) is not None


def test_the_first_loss_of_a_worker_is_repeated_at_once_and_later_ones_wait() -> None:
    lost = Error("WorkerLost", "gone", Reason.WORKER_LOST)
    policy = Retry(attempts=3, on=ConnectionError, never="WorkerLost", jitter=0)
    assert policy.delay_after(lost, failures=1, noise=0.5) == timedelta(0)
    assert policy.delay_after(lost, failures=2, noise=0.5) == timedelta(seconds=2)
    assert policy.delay_after(lost, failures=3, noise=0.5) is None


@given(POLICIES)
def test_a_policy_comes_back_from_its_row_as_it_was(policy: Retry) -> None:
    stored = json.loads(json.dumps(policy.packed()))
    again = Retry.unpacked(stored)
    assert again == policy
    assert [again.delay_after(error(), failures=n, noise=1.0) for n in range(1, 9)] == [
        policy.delay_after(error(), failures=n, noise=1.0) for n in range(1, 9)
    ]


def test_the_default_policy_takes_no_room() -> None:
    assert Retry().packed() == {}
    assert Retry(attempts=5, on=KeyError).packed() == {"attempts": 5, "on": ("KeyError",)}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attempts", 0), ("attempts", 1.5), ("attempts", True), ("attempts", "3"), ("attempts", 2**31),
        ("backoff", "linear"), ("backoff", []), ("backoff", None), ("backoff", 5), ("backoff", [1, -1]),
        ("delay", -1), ("delay", "soon"), ("delay", None), ("max_delay", "-1s"), ("factor", 0.5), ("factor", "2"),
        ("factor", float("inf")), ("factor", float("nan")), ("factor", None), ("jitter", -0.1), ("jitter", 1.1),
        ("jitter", "some"), ("on", [5]), ("on", int), ("on", 5), ("never", [""]), ("never", None),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(setting: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=rf"^Retry\({setting}\) = "):
        Retry(**{setting: value})
