"""What a workflow asks for. A command is issued by code, recorded as an event, and carried out with it."""

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
    """Something to be recorded when it is issued. Its fields are those of its event."""

    type: EventType
    number: int | None = None
    name: str | None = None
    run_id: UUID | None = None
    takes: tuple[str, ...] | None = None
    value: bytes | None = None
    error: Error | None = None
    when: datetime | None = None
    start: Start | None = None
    """The run that it starts."""
    line: object = ""
    """Where in the code it was issued: a text, or the task that stands there, for whoever has to look."""
    dropped: bool = False
    """It was taken back before anyone heard of it: nothing happened."""
    rollback: bool | None = None
    """A compensation asked for it."""

    def __str__(self) -> str:
        return described(self.type, self.name, self.takes)


class StepCall(Struct, eq=False):
    """A step to be run here. Only its end is recorded."""

    number: int
    name: str
    step: Any
    """Its definition."""
    input: bytes
    line: object = ""
    dropped: bool = False
    rollback: bool | None = None
    """A compensation asked for it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the code ended: the last event of its history."""

    type: EventType
    value: bytes | None = None
    error: Error | None = None
    signals: tuple[tuple[str, bytes], ...] | None = None
    state: str | None = None
    """Of WorkflowFailed: ROLLED_BACK if all that it had to undo was undone."""

    @property
    def cancels(self) -> bool:
        """Whether what it started ends with it."""
        return self.type is EventType.WORKFLOW_CANCELLED


ROLLED_BACK = "rolled_back"


def described(type: str, name: str | None, takes: tuple[str, ...] | None = None) -> str:
    """A command or event for people: `TaskScheduled shop.charge(order)`."""
    if name is None:
        return str(type)
    return f"{type} {name}" if takes is None else f"{type} {name}({', '.join(takes)})"
