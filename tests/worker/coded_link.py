"""A link that encodes and decodes every call, as one that crosses a network has to."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_type_hints

import msgspec

from stepwell.model import errors
from stepwell.model.errors import StepwellError
from stepwell.worker.direct import DirectLink
from stepwell.worker.link import DataRefused, Hold, Link

VERBS = ("claim", "exchange", "settle", "news", "history", "advance", "note", "save", "load", "held")
HOLD_VERBS = ("renew", "sample", "leave")


class Raised(msgspec.Struct):
    """An error on the wire: the name of its type, its text, and the facts of one of ours."""

    type: str
    message: str
    facts: dict[str, Any] | None = None


class FarError(Exception):
    """An error of the other side that is none of the link's own."""


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def raised(error: Exception) -> Raised:
    match error:
        case DataRefused():
            return Raised("DataRefused", str(error), {"type": error.type})
        case StepwellError():
            return Raised(type(error).__name__, str(error), error.facts())
        case _:
            return Raised("FarError", f"{type(error).__name__}: {error}")


def rebuilt(wire: bytes) -> Exception:
    told = msgspec.msgpack.decode(wire, type=Raised)
    if told.type == "DataRefused":
        return DataRefused((told.facts or {})["type"], told.message)
    known = getattr(errors, told.type, None)
    if known is None:
        return FarError(told.message)
    facts = {
        name: msgspec.convert((told.facts or {})[name], hint)
        for name, hint in get_type_hints(known, vars(errors)).items()
        if name in (told.facts or {})
    }
    rebuilt_error: Exception = known.rebuild(facts)
    return rebuilt_error


class Wire:
    """The types of a verb's arguments and answer, by which both sides encode and decode."""

    def __init__(self, verb: Callable[..., Any]) -> None:
        self.signature = inspect.signature(verb)
        hints = get_type_hints(verb)
        self.answer = msgspec.msgpack.Decoder(hints.pop("return"))
        self.arguments = {name: msgspec.msgpack.Decoder(hint) for name, hint in hints.items()}

    async def call(self, far: Any, *given: Any, **named: Any) -> Any:
        bound = self.signature.bind(None, *given, **named)
        sent = {name: encoded(value) for name, value in bound.arguments.items() if name != "self"}
        bound.arguments.update({name: self.arguments[name].decode(value) for name, value in sent.items()})
        try:
            answer = encoded(await far(*bound.args[1:], **bound.kwargs))
        except Exception as error:
            wire = encoded(raised(error))
        else:
            return self.answer.decode(answer)
        raise rebuilt(wire)


WIRES = {name: Wire(getattr(Link, name)) for name in VERBS}
HOLD_WIRES = {name: Wire(getattr(Hold, name)) for name in HOLD_VERBS}


class CodedHold:
    def __init__(self, far: Any) -> None:
        for name, wire in HOLD_WIRES.items():
            setattr(self, name, _through(wire, far, name))


class CodedLink:
    """A link to a direct one, through which only bytes go. Subscriptions and the capability to lend are passed on."""

    def __init__(self, far: DirectLink, *, calls: list[str], lends: bool = True) -> None:
        """`calls` gets the name of every verb that is called."""
        self._far = far
        for name, wire in WIRES.items():
            setattr(self, name, _through(wire, far, name, calls))
        self.lend = far.lend if lends else None
        self.hear = far.hear

    @property
    def hears(self) -> bool:
        return self._far.hears

    @property
    def queues(self) -> Any:
        return self._far.queues

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[CodedHold]:
        async with self._far.lease() as hold:
            yield CodedHold(hold)


def _through(wire: Wire, far: Any, name: str, calls: list[str] | None = None) -> Callable[..., Any]:
    async def call(*given: Any, **named: Any) -> Any:
        if calls is not None:
            calls.append(name)
        return await wire.call(getattr(far, name), *given, **named)

    return call
