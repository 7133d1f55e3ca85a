"""Turns of workflows: code, what it writes, and its steps."""
