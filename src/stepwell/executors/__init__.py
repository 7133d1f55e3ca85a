"""Executors: where the body of a definition runs. On the loop, in a thread, in a process, or in an app's own executor.

`Executor` is the protocol for an executor of your own; `run_body` and `measured` are what most of them need. One whose
bodies run outside of this process raises `RemoteError` for what a body raised, and `ProcessDied` if it died.
"""

from stepwell.context.current import measured
from stepwell.executors.base import Body, Executor, ProcessDied, RemoteError, run_body
from stepwell.model.notes import Usage

__all__ = ["Body", "Executor", "ProcessDied", "RemoteError", "Usage", "measured", "run_body"]
