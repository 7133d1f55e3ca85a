"""Retry policies of every sort, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from stepwell.model.retry import Retry

DELAYS = st.floats(0, 3600)
POLICIES = st.builds(
    Retry,
    attempts=st.integers(1, 50),
    backoff=st.sampled_from(["exponential", "fixed"]) | st.lists(DELAYS, min_size=1, max_size=5),
    delay=DELAYS,
    factor=st.floats(1, 1e6),
    max_delay=DELAYS,
    jitter=st.floats(0, 1),
    on=st.lists(st.sampled_from(["ValueError", "OSError", "CODE"]), max_size=2),
    never=st.lists(st.sampled_from(["KeyError", "STOP"]), max_size=2),
)
