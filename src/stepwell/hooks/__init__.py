"""Hooks and the log of failures. Both listen to telemetry, and an error in them never reaches the work."""
