"""Commands of a workflow. Its code issues a command; the turn records it as an event and carries it out with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from stepwell.model.events import EventType
from stepwell.model.run import Error
from stepwell.model.start import Start


class Command(Struct, eq=False):
    """A request of the workflow's code, recorded when it is issued. Its fields are those of its event."""

    type: EventType
    number: int | None = None
    name: str | None = None
    run_id: UUID | None = None
    takes: tuple[str, ...] | None = None
    value: bytes | None = None
    error: Error | None = None
    when: datetime | None = None
    start: Start | None = None
    """The run that the command starts."""
    line: object = ""
    """The place in the code that issued the command, for diagnosis: a text, or the asyncio task that was running."""
    dropped: bool = False
    """True if the command was withdrawn before it was written: it has no effect."""
    rollback: bool | None = None
    """True if a compensation issued the command."""

    def __str__(self) -> str:
        return described(self.type, self.name, self.takes)


class StepCall(Struct, eq=False):
    """A step to run in this worker. Only its end is recorded."""

    number: int
    name: str
    step: Any
    """The step's definition."""
    input: bytes
    line: object = ""
    dropped: bool = False
    rollback: bool | None = None
    """True if a compensation called the step."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the workflow's code: the last event of its history."""

    type: EventType
    value: bytes | None = None
    error: Error | None = None
    signals: tuple[tuple[str, bytes], ...] | None = None
    state: str | None = None
    """ROLLED_BACK on WorkflowFailed if every compensation succeeded."""

    @property
    def cancels(self) -> bool:
        """True if the runs that the workflow started are cancelled with it."""
        return self.type is EventType.WORKFLOW_CANCELLED


ROLLED_BACK = "rolled_back"


def described(type: str, name: str | None, takes: tuple[str, ...] | None = None) -> str:
    """Render a command or event for people: `TaskScheduled shop.charge(order)`."""
    if name is None:
        return str(type)
    return f"{type} {name}" if takes is None else f"{type} {name}({', '.join(takes)})"
