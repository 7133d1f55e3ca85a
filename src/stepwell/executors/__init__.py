"""Executors: where the body of a definition runs. On the loop, in a thread, in a process, or in an app's own executor.

`Executor` is the protocol for an executor of your own, and `run_body` and `measured` are what most of them need.
"""

from stepwell.context.current import measured
from stepwell.executors.base import Body, Executor, run_body
from stepwell.model.notes import Usage

__all__ = ["Body", "Executor", "Usage", "measured", "run_body"]
