"""Claiming: where to look for work next, and the loops that claim it."""
