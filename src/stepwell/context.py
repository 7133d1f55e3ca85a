"""`current`: what a task's body may know of the run it belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from stepwell.model.errors import UsageError
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.run import Claim


@dataclass(eq=False)
class NotInARun(UsageError):
    """`current` is only there inside a task that a worker runs."""


@dataclass(slots=True)
class Running:
    """An attempt under way, as its body sees it."""

    claim: Claim
    cancelled: bool = field(default=False)


running: ContextVar[Running | None] = ContextVar("stepwell.running", default=None)


class Current:
    """The run this code belongs to. Every property raises NotInARun outside of one."""

    @property
    def run_id(self) -> UUID:
        return self._claim.id

    @property
    def name(self) -> str:
        return self._claim.name

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def key(self) -> str | None:
        return self._claim.key

    @property
    def tags(self) -> MappingProxyType[str, Any]:
        tags = self._claim.tags
        return MappingProxyType({} if tags is None else msgspec.json.decode(tags))

    @property
    def cancelled(self) -> bool:
        """Whether the claim is gone: for code in threads, which nobody can interrupt."""
        return _here().cancelled

    @property
    def _claim(self) -> Claim:
        return _here().claim


def _here() -> Running:
    here = running.get()
    if here is None:
        raise NotInARun
    return here


def family() -> tuple[UUID | None, UUID | None]:
    """Whose child a run started here would be: its parent, and the first of the line."""
    here = running.get()
    if here is None:
        return None, None
    return here.claim.id, here.claim.root_id or here.claim.id


class _Carried(msgspec.Struct, array_like=True):
    """A claim without its claim id: a body can settle nothing, and what it does not know it cannot leak."""

    run_id: UUID
    name: str
    queue: str
    attempt: int
    key: str | None
    tags: str | None
    root_id: UUID | None


def carried() -> str | None:
    """What `current` tells here, as text that another process can carry on from."""
    here = running.get()
    if here is None:
        return None
    claim = here.claim
    tags = None if claim.tags is None else claim.tags.decode()
    told = _Carried(claim.id, claim.name, claim.queue, claim.attempt, claim.key, tags, claim.root_id)
    return msgspec.json.encode(told).decode()


def carry_on(told: str | None) -> None:
    """Let `current` tell here what it told there."""
    if told is None:
        running.set(None)
        return
    run = msgspec.json.decode(told, type=_Carried)
    claim = Claim.bare(RunId(run.run_id), ClaimId(UUID(int=0)), run.queue, run.attempt)
    claim.name, claim.key, claim.root_id = run.name, run.key, run.root_id
    claim.tags = None if run.tags is None else run.tags.encode()
    running.set(Running(claim))


current = Current()
