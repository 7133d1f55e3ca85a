"""Reads the source of workflows, and of the user's functions that they call, for what a replay could not repeat.

Nothing of it is run. What cannot be told from the text, such as which function a variable holds, is passed over:
the guard (`replay/guard.py`) sees it when it happens.
"""
