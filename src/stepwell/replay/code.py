"""A workflow's code as a replay sees it, and the two exceptions that interrupt it before its end."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

from stepwell.model.run import Error


class ContinueAsNew(BaseException):
    """Raised by workflow.continue_as_new: the history ends, and the code begins anew with this input."""

    def __init__(self, input: bytes) -> None:
        self.input = input


class Evicted(BaseException):
    """Raised into coroutines that are evicted here. The run goes on later or in another process."""


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a workflow's own run that its code may read."""

    id: UUID
    name: str
    key: str | None = None
    queue: str = "default"
    parent_id: UUID | None = None
    root_id: UUID | None = None
    tags: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Code(Protocol):
    """The function of a workflow, with its encoding."""

    def body(self, input: bytes | None) -> Coroutine[Any, Any, bytes]:
        """Return the coroutine, which returns the encoded result. After continue_as_new, `input` replaces the run's."""
        ...

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...

    def describe(self, error: BaseException) -> Error:
        """Return the error to store for an exception of the code."""
        ...


def continues(error: BaseException) -> ContinueAsNew | None:
    """Return the ContinueAsNew in this error, or None. A TaskGroup wraps it in a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAsNew) else None
