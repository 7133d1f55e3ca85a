"""Updates: requests to a running workflow that are answered by a function inside the workflow's function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.codec import Signature
from stepwell.model.errors import DuplicateName, WrongUse
from stepwell.model.events import Event, EventType
from stepwell.model.run import Error, Reason
from stepwell.replay.code import ContinueAsNew, Evicted
from stepwell.replay.loop import Loop

_NOT_ITS_OWN = (Evicted, GeneratorExit)
"""Exceptions that evict the code here, and are no answer to an update."""
_ENDED = Error("RunEnded", "the workflow ended before it had answered", Reason.GAVE_UP)


class Answer(Protocol):
    def __call__(
        self, type: EventType, *, name: str | None, run_id: Any, value: bytes | None = None, error: Error | None = None
    ) -> object: ...


@dataclass(slots=True)
class Updater:
    """The handler and validator for updates of one name."""

    fn: Callable[..., Any]
    signature: Signature
    validate: Callable[..., Any] | None = None


class Updates:
    """The update handlers of one workflow."""

    def __init__(self, loop: Loop, answer: Answer, describe: Callable[[BaseException], Error]) -> None:
        self._loop = loop
        self._answer = answer
        self._describe = describe
        self._updaters: dict[str, Updater] = {}

    def clear(self) -> None:
        self._updaters.clear()
        self._answer = lambda *_, **__: None

    def register(self, name: str, fn: Callable[..., Any]) -> Updater:
        if name in self._updaters:
            raise DuplicateName(name, "an update of this workflow", "another one")
        updater = self._updaters[name] = Updater(fn, Signature(fn, name=name))
        return updater

    def requested(self, event: Event) -> None:
        self._loop.call_soon(self._accept, event)

    def _accept(self, event: Event) -> None:
        """Start a task for the update if it is valid. Otherwise reject it, without any effect."""
        updater = self._updaters.get(event.name or "")
        if updater is None:
            known = ", ".join(sorted(self._updaters)) or "none"
            message = f"unknown update: {event.name!r}. This workflow's updates: {known}"
            self._reject(event, Error("UnknownName", message, Reason.GAVE_UP))
            return
        try:
            args, kwargs = updater.signature.decode_input(event.value or b"{}")
            if updater.validate is not None and inspect.iscoroutine(answer := updater.validate(*args, **kwargs)):
                answer.close()
                raise WrongUse(f"the validator of {event.name!r} is async: make it a plain def without await")
        except _NOT_ITS_OWN:
            raise
        except BaseException as error:
            self._reject(event, self._describe(error))
            return
        self._loop.create_task(self._handle(updater, event, args, kwargs), name=f"update:{event.name}")

    def _reject(self, event: Event, error: Error) -> None:
        self._answer(EventType.UPDATE_REJECTED, name=event.name, run_id=event.run_id, error=error)

    async def _handle(self, updater: Updater, event: Event, args: Any, kwargs: Any) -> None:
        try:
            result = updater.fn(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            value = updater.signature.encode_result(result)
        except asyncio.CancelledError:
            self._answer(EventType.UPDATE_FAILED, name=event.name, run_id=event.run_id, error=_ENDED)
            raise
        except _NOT_ITS_OWN:
            raise
        except BaseException as error:  # the caller of the update needs an answer in any case
            if isinstance(error, ContinueAsNew):
                error = WrongUse("an update cannot continue as new: let it ask the workflow's main function to do so")
            self._answer(EventType.UPDATE_FAILED, name=event.name, run_id=event.run_id, error=self._describe(error))
        else:
            self._answer(EventType.UPDATE_COMPLETED, name=event.name, run_id=event.run_id, value=value)
