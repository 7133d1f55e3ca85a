from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import InvalidSetting
from stepwell.model.duration import duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0), (30, 30), (0.25, 0.25), (timedelta(minutes=2), 120), ("250ms", 0.25), ("30s", 30), ("5m", 300),
        ("2h", 7200), ("1d", 86_400), ("1w", 604_800), ("1h30m", 5400), ("1h 30m", 5400), (" 1.5h ", 5400),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_people_write_it(written: Any, seconds: float) -> None:
    assert duration(written, setting="delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "nonsense",
    [
        -1, -0.5, timedelta(seconds=-1), "", "30", "s", "-5s", "5 minutes", "1h30", "1 h", "5M", "1e3s", "5m!", True,
        None, [], b"5m", float("nan"), float("inf"), 10**400, "9" * 400 + "s", "3650w 365d 99999d", timedelta.max,
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_by_the_name_of_its_setting(nonsense: Any) -> None:
    with pytest.raises(InvalidSetting, match="max_delay") as refused:
        duration(nonsense, setting="max_delay")
    assert "'30s'" in str(refused.value)


@given(st.floats(0, 1e9))
def test_seconds_and_their_timedelta_mean_the_same(seconds: float) -> None:
    assert duration(seconds, setting="x") == duration(timedelta(seconds=seconds), setting="x")
