"""The protocol of an executor, and how the error of a body becomes text that can be stored.

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
    """A definition, as an executor sees it."""

    @property
    def name(self) -> str: ...

    @property
    def fn(self) -> Callable[..., Any]:
        """The function itself."""
        ...

    @property
    def signature(self) -> Signature:
        """Decodes the input of the function, and encodes its result."""
        ...


def nobody() -> None:
    """Do nothing when a body begins."""


class Executor(Protocol):
    """Runs bodies. An app registers its own by name: `App(executors={"gpu": MyExecutor()})`.

    One executor serves all workers of its app in this process, one after the other or at the same time.
    """

    def refuses(self, fn: Callable[..., Any]) -> str | None:
        """Return why this executor cannot run a function, or None if it can. Called by the decorator."""
        ...

    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = nobody) -> bytes:
        """Run the body on its input, which is JSON, and return its result as JSON. Raise what the body raised.

        Call `begun` on this event loop when there is room for the body: its timeout counts from then. Before this
        returns or raises, `measured` may be called with what the body took. To cancel the attempt the worker cancels
        this coroutine: end the body if it can be ended, and raise CancelledError at once if it cannot.
        """
        ...

    @property
    def stuck(self) -> int:
        """Count the cancelled calls whose body goes on: each keeps the slot of its worker."""
        ...

    async def close(self, grace: float = 0.0) -> None:
        """Let running calls end for `grace` seconds, then give them up. Called when the last worker has ended. `run`
        may be called again for a later worker."""
        ...


def run_body(body: Body, input: bytes) -> bytes:
    """Run a `def` body here, in this thread. What it raises can be carried by a future: an exit comes wrapped."""
    try:
        args, kwargs = body.signature.decode_input(input)
        return body.signature.encode_result(body.fn(*args, **kwargs))
    except StopIteration as error:
        raise RuntimeError("the body raised StopIteration") from error
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise contained(error) from error


@dataclass(eq=False)
class BodyExited(Exception):
    """The body raised an error that would have ended the worker's event loop: SystemExit, KeyboardInterrupt, or a
    CancelledError although the attempt was not cancelled."""

    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(eq=False)
class RemoteError(Exception):
    """The error of a body in another process, as plain data."""

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
    """Return the error as an event loop can carry it: those that asyncio reads as its own end come wrapped."""
    if not isinstance(error, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        return error
    exited = BodyExited(type(error).__name__, message_text(error))
    exited.__cause__ = error
    return exited


def leading(error: BaseException) -> BaseException:
    """Return the error to report: the one in a group of one, or the NotDurable that led to all the rest, since its
    remedy helps."""
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
    """Return the error's type and its bases, most specific first: "shop.Declined", "ValueError", "Exception", …

    The types of a group around it follow: a retry policy may name either."""
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
    """Yield the errors that a group was raised for: its own message says only how many there are."""
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
    """Return the code that an error of the user's carries, if it is text."""
    try:
        code = getattr(leading(error), "code", None)
    except Exception:
        return None
    return bounded(code, MESSAGE_LIMIT) if isinstance(code, str) else None


def traceback_text(error: BaseException) -> str:
    """Return the traceback as text, beginning at the user's frame."""
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
    """Return the text with its middle left out if it is too long, and without characters that Postgres cannot store."""
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
