"""Gathers and explains why a run is in its current state."""
