"""What an executor is, and how an error from a body is told to those who store it.

An executor runs bodies and nothing more: it knows no runs, no retries and no database.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.model.errors import NotDurable
from stepwell.model.raised import Fatal, type_name

if TYPE_CHECKING:
    from stepwell.codec import Signature

MESSAGE_LIMIT = 10_000
TRACEBACK_LIMIT = 65_536
SHOWN = 3
"""Errors of a group that its message names."""

_PACKAGE = Path(__file__).parent.parent
_OWN_CODE = tuple(f"{_PACKAGE / part}{os.sep}" for part in ("executors", "worker", "replay"))


class Body(Protocol):
    """What a definition offers to an executor."""

    @property
    def name(self) -> str: ...

    @property
    def fn(self) -> Callable[..., Any]: ...

    @property
    def signature(self) -> Signature: ...


def nobody() -> None:
    """For whom it makes no difference when a body begins."""


class Executor(Protocol):
    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = nobody) -> bytes:
        """The result of the body as JSON, given its input as JSON. Raises what the body raised.

        `begun` is called when there is room for the body: its time counts from then.
        """
        ...

    @property
    def stuck(self) -> int:
        """How many calls were given up by us but still hold their thread, and so their slot."""
        ...

    async def close(self, grace: float = 0.0) -> None:
        """Let running calls end for `grace` seconds, then give them up."""
        ...


@dataclass(eq=False)
class BodyExited(Exception):
    """The body raised what would have ended the worker's event loop: SystemExit, KeyboardInterrupt, or a
    CancelledError that nobody asked for."""

    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(eq=False)
class RemoteError(Exception):
    """What a body raised in another process, as plain data."""

    type: str
    types: tuple[str, ...]
    message: str
    traceback: str
    code: str | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class ProcessDied(Exception):
    """The process died before it answered. Either `exit_code` or `signal` says how."""

    exit_code: int | None
    signal: str | None

    def __str__(self) -> str:
        how = f"was killed by {self.signal}" if self.signal else f"ended with exit code {self.exit_code}"
        return f"the process {how} before it answered"


def contained(error: BaseException) -> BaseException:
    """The error as an event loop can carry it: those that asyncio reads as its own end come wrapped."""
    if not isinstance(error, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        return error
    exited = BodyExited(type(error).__name__, message_text(error))
    exited.__cause__ = error
    return exited


def leading(error: BaseException) -> BaseException:
    """The error to tell: the one in a group of one; or the NotDurable that led to all the rest, as its remedy helps."""
    return _refused_behind(error) or _sole(error)


def _sole(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _refused_behind(error: BaseException) -> NotDurable | None:
    unseen, seen = [error], {id(error)}
    while unseen:
        link = unseen.pop()
        if isinstance(link, NotDurable):
            return link
        before = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        inside = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        more = [each for each in (before, *reversed(inside)) if each is not None and id(each) not in seen]
        seen.update(map(id, more))
        unseen += more
    return None


def type_names(error: BaseException) -> tuple[str, ...]:
    """The error's type and its bases, most specific first: "shop.Declined", "ValueError", "Exception", …

    Those of a group around it follow: a retry policy may name either."""
    remote = _told_by_child(error)
    if remote is not None:
        return remote.types
    told = (*type(leading(error)).__mro__, *type(error).__mro__)
    return tuple(dict.fromkeys(type_name(cls) for cls in told if cls is not object))


def message_text(error: BaseException) -> str:
    told = leading(error)
    text = _text_of(told)
    if isinstance(told, BaseExceptionGroup) and (causes := list(islice(_leaves(told), SHOWN + 1))):
        named = [f"{type_names(each)[0]}: {message_text(each)}" for each in causes[:SHOWN]]
        text = f"{text}: {'; '.join(named)}{'; …' if len(causes) > SHOWN else ''}"
    if told is not error and _sole(error) is not told:
        text = f"{text} It led to {type_name(type(error))}: {_text_of(error)}"
    return bounded(text, MESSAGE_LIMIT)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors that a group was raised for: its own message says only how many there are."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} whose str() failed>"


def code_text(error: BaseException) -> str | None:
    """The code an error of the user's carries, if it is text."""
    try:
        code = getattr(leading(error), "code", None)
    except Exception:
        return None
    return bounded(code, MESSAGE_LIMIT) if isinstance(code, str) else None


def traceback_text(error: BaseException) -> str:
    """The traceback as text, beginning at the user's frame."""
    remote = _told_by_child(error)
    if remote is not None:
        return remote.traceback
    try:
        told = TracebackException(type(error), error, error.__traceback__, compact=True)
        _drop_own_frames(told)
        return bounded("".join(told.format()), TRACEBACK_LIMIT)
    except Exception:
        return f"<the traceback of {type(error).__name__} could not be written>"


def bounded(text: str, limit: int) -> str:
    """The text with its middle left out if it is too long, and without what Postgres cannot store."""
    if len(text) > limit:
        mark = f"\n… {len(text) - limit} characters left out …\n"
        head = (limit - len(mark)) // 2
        tail = limit - len(mark) - head
        text = f"{text[:head]}{mark}{text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _told_by_child(error: BaseException) -> RemoteError | None:
    if isinstance(error, Fatal | BodyExited):
        error = error.__cause__ or error
    return error if isinstance(error, RemoteError) else None


def _drop_own_frames(told: TracebackException) -> None:
    unseen: list[TracebackException | None] = [told]
    while unseen:
        link = unseen.pop()
        if link is None:
            continue
        unseen += [link.__cause__, link.__context__, *(getattr(link, "exceptions", None) or ())]
        own = 0
        while own < len(link.stack) and link.stack[own].filename.startswith(_OWN_CODE):
            own += 1
        # An error of our own, with no frame of the user's, keeps its frames: they are all there is.
        if own < len(link.stack):
            del link.stack[:own]
