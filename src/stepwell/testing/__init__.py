"""Tools for tests of code that uses Stepwell: a clock that can skip time, and strict checks of workflow code."""

from stepwell.replay.guard import strict_by_default
from stepwell.testing.clock import Clock

__all__ = ["Clock"]

strict_by_default()
