"""A workflow's code as a replay sees it, and the two ways in which it ends without having ended."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

from stepwell.model.run import Error


class ContinueAsNew(BaseException):
    """Raised by workflow.continue_as_new: this history ends here."""

    def __init__(self, input: bytes) -> None:
        self.input = input


class Evicted(BaseException):
    """Raised into code that is being ended here, and goes on elsewhere or later."""


@dataclass(frozen=True, slots=True)
class About:
    """What a workflow may know of the run that it is."""

    id: UUID
    name: str
    key: str | None = None
    queue: str = "default"
    parent_id: UUID | None = None
    root_id: UUID | None = None
    tags: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Code(Protocol):
    """A workflow's function, and what can be made of it."""

    def body(self, input: bytes | None) -> Coroutine[Any, Any, bytes]:
        """Its coroutine, which gives the encoded result. The input is another than the run's if it has continued."""
        ...

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...

    def describe(self, error: BaseException) -> Error:
        """What is stored of something it raised."""
        ...


def continues(error: BaseException) -> ContinueAsNew | None:
    """Whether code that raised this begins anew. A TaskGroup raises it as one of a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAsNew) else None
