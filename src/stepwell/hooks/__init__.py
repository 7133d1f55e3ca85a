"""Hooks, and the log of failures: both listen to telemetry, and neither can hurt the work it hears of."""
