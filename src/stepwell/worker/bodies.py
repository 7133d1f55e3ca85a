"""What a worker can run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from stepwell.context import Running
from stepwell.executors.base import Body, Executor
from stepwell.model.outcome import Outcome


class Runnable(Body, Protocol):
    @property
    def executor(self) -> str:
        """The name of the executor its body runs on."""
        ...

    @property
    def heartbeat(self) -> timedelta | None:
        """How long its body may give no sign of life."""
        ...


Around = Callable[[Running, Coroutine[Any, Any, Outcome]], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True, slots=True)
class Bodies:
    """What a worker can run: a body by name, and the executor for it."""

    by_name: Mapping[str, Runnable]
    executors: Mapping[str, Executor]
    turns: frozenset[str] = frozenset()
    """Names of workflows, which have turns."""
    around: Around | None = None
    """Run with each attempt of a task, around its body."""

    @property
    def tasks(self) -> frozenset[str]:
        """Names of everything else."""
        return frozenset(self.by_name) - self.turns

    @property
    def stuck(self) -> int:
        stuck = 0
        for executor in self.executors.values():
            stuck += executor.stuck
        return stuck
