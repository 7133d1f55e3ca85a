"""The bodies that a worker can run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from stepwell.context.current import Running
from stepwell.executors.base import Body, Executor
from stepwell.model.outcome import Outcome
from stepwell.model.run import Claim


class Runnable(Body, Protocol):
    """A definition, as a worker sees it."""

    @property
    def executor(self) -> str:
        """Name of the executor that its body runs on."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the definition: "task" or "workflow"."""
        ...

    @property
    def heartbeat(self) -> timedelta | None:
        """Time for which its body may give no sign of life."""
        ...


Around = Callable[[Running, Coroutine[Any, Any, Outcome]], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies that a worker can run, by name, and the executors for them."""

    by_name: Mapping[str, Runnable]
    executors: Mapping[str, Executor]
    around: Around | None = None
    """Wrapper that is run with each attempt of a task, around its body."""

    workflows: frozenset[str] = field(init=False)
    """Names of workflows, with and without a pinned version."""

    def __post_init__(self) -> None:
        workflows = frozenset(name for name, body in self.by_name.items() if body.kind == "workflow")
        object.__setattr__(self, "workflows", workflows)

    @property
    def tasks(self) -> frozenset[str]:
        """Names of tasks."""
        return frozenset(self.by_name) - self.workflows

    def mark_turns(self, claims: Sequence[Claim]) -> list[Claim]:
        """Mark the claims that are turns of workflows, and return them. The definition decides; the rows may say
        otherwise."""
        turns = [claim for claim in claims if claim.name in self.workflows]
        for claim in turns:
            claim.turn = True
            claim.name = self.by_name[claim.name].name  # the name without a pinned version
        return turns

    @property
    def stuck(self) -> int:
        """Number of threads that go on after their attempt was settled."""
        stuck = 0
        for executor in self.executors.values():
            stuck += executor.stuck
        return stuck
