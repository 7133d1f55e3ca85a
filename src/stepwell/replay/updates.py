"""Updates: requests to a running workflow that are answered, by a function inside the workflow's own."""

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
"""What ends its code here, and is no answer."""
_ENDED = Error("RunEnded", "the workflow ended before it had answered", Reason.GAVE_UP)


class Answer(Protocol):
    def __call__(
        self, type: EventType, *, name: str | None, run_id: Any, value: bytes | None = None, error: Error | None = None
    ) -> object: ...


@dataclass(slots=True)
class Updater:
    """What answers the updates of one name."""

    fn: Callable[..., Any]
    signature: Signature
    validate: Callable[..., Any] | None = None


class Updates:
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
        """Accepted, and a task of the workflow's; or refused, and nothing has happened."""
        updater = self._updaters.get(event.name or "")
        if updater is None:
            known = ", ".join(sorted(self._updaters)) or "none"
            self._reject(event, Error("UnknownName", f"{event.name!r} is no update: known are {known}", Reason.GAVE_UP))
            return
        try:
            args, kwargs = updater.signature.decode_input(event.value or b"{}")
            if updater.validate is not None and inspect.iscoroutine(answer := updater.validate(*args, **kwargs)):
                answer.close()
                raise WrongUse(f"the validator of {event.name!r} is async: it may only look, not wait")
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
        except BaseException as error:  # whoever asked waits for an answer, whatever it is
            if isinstance(error, ContinueAsNew):
                error = WrongUse("an update cannot continue as new: let it tell the workflow's own code to do so")
            self._answer(EventType.UPDATE_FAILED, name=event.name, run_id=event.run_id, error=self._describe(error))
        else:
            self._answer(EventType.UPDATE_COMPLETED, name=event.name, run_id=event.run_id, value=value)
