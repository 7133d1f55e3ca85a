from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from stepwell.model.outcome import Completed, Failed, Outcome, Released, Repeated, Retried, Snoozed, decide
from stepwell.model.retry import Retry
from stepwell.model.run import Error, Reason
from tests.model.policies import POLICIES

ERRORS = st.builds(
    Error,
    type=st.sampled_from(["ValueError", "OSError", "KeyError"]),
    message=st.just("boom"),
    reason=st.sampled_from(list(Reason)),
    code=st.sampled_from([None, "CODE", "STOP"]),
)
NOISE = st.floats(0, 1)


@given(POLICIES, st.lists(ERRORS, min_size=60, max_size=60), NOISE)
def test_no_run_fails_more_often_than_its_policy_has_attempts(policy: Retry, errors: list[Error], noise: float) -> None:
    failures = 0
    for error in errors:
        move = decide(Failed(error), retry=policy, failures=failures, noise=noise)
        failures += 1
        if isinstance(move, Failed):
            break
    assert failures <= policy.attempts


@given(POLICIES, st.integers(0, 10_000), NOISE)
def test_a_failure_that_is_not_the_last_is_retried_later_or_repeated_at_once(
    policy: Retry, failures: int, noise: float
) -> None:
    error = Error("ValueError", "boom", Reason.TIMED_OUT, code="CODE")
    match decide(Failed(error), retry=policy, failures=failures, noise=noise):
        case Retried(told, delay):
            assert told is error
            assert delay > timedelta(0)
        case Repeated(told):
            assert told is error
        case Failed(told):
            assert told is error
            assert failures + 1 >= policy.attempts or policy.on
        case other:
            raise AssertionError(other)


@given(
    POLICIES,
    st.integers(0, 100),
    st.builds(Completed, st.binary()) | st.builds(Snoozed, st.timedeltas(timedelta(0))) | st.builds(Released),
)
def test_what_is_no_failure_stays_as_it_is_whatever_the_policy_says(
    policy: Retry, failures: int, outcome: Outcome
) -> None:
    assert decide(outcome, retry=policy, failures=failures, noise=0.5) is outcome
