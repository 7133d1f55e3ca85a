"""For tests of code that uses Stepwell: time that can be skipped, and workflows that are watched strictly."""

from stepwell.replay.guard import strict_by_default
from stepwell.testing.clock import Clock

__all__ = ["Clock"]

strict_by_default()
