"""For tests of code that uses Stepwell: time that can be skipped."""

from stepwell.testing.clock import Clock

__all__ = ["Clock"]
