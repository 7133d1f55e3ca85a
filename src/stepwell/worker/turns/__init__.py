"""Turns of workflows: their code, their writes, and their steps."""
