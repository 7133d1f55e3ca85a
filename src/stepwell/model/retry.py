"""The retry policy: a value on the run's row. The worker and the reaper therefore decide alike when they settle an
attempt, without the task's code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from math import inf
from typing import Any, Literal, Self

import msgspec

from stepwell.model.counting import MOST
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import InvalidSetting
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.raised import SHORTEST, type_name
from stepwell.model.run import Error, Reason

Matcher = type[BaseException] | str
Backoff = Literal["exponential", "fixed"]
FAST = 10
"""The number of attempts that may follow one another without a pause."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The rule for a failed attempt: whether to retry, and after which delay. After ten failures it is at least 0.1 s.

    `attempts` counts the first one. `backoff` is "exponential", "fixed" or the delays themselves, the last
    of which repeats. `on` and `never` name exception types, their qualified names, or the codes of RunError.

    >>> Retry(attempts=5, backoff="exponential", delay=1, max_delay=300)
    """

    attempts: int = 3
    backoff: Backoff | Sequence[Duration] = "exponential"
    delay: Duration = 1
    factor: float = 2
    max_delay: Duration = 300
    jitter: float = 0.1
    on: Sequence[Matcher] | Matcher = ()
    never: Sequence[Matcher] | Matcher = ()
    _delays: tuple[float, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        _check("Retry(attempts)", self.attempts, _whole(self.attempts) and 1 <= self.attempts <= MOST, f"1 to {MOST}")
        _check("Retry(factor)", self.factor, _number(self.factor) and self.factor >= 1, "a number, at least 1")
        _check("Retry(jitter)", self.jitter, _number(self.jitter) and 0 <= self.jitter <= 1, "between 0 and 1")
        listed = _items(self.backoff) or ()
        if not listed:
            _check("Retry(backoff)", self.backoff, self.backoff in ("exponential", "fixed"),
                   "'exponential', 'fixed' or a list of delays")  # fmt: skip
        for name in ("delay", "max_delay"):
            seconds = duration(getattr(self, name), setting=f"Retry({name})").total_seconds()
            object.__setattr__(self, name, seconds)
        delays = tuple(duration(each, setting="Retry(backoff)").total_seconds() for each in listed)
        object.__setattr__(self, "_delays", delays)
        if delays:
            object.__setattr__(self, "backoff", delays)
        object.__setattr__(self, "on", _names("Retry(on)", self.on))
        object.__setattr__(self, "never", _names("Retry(never)", self.never))

    def delay_after(self, error: Error, *, failures: int, noise: float) -> timedelta | None:
        """Return the delay before the next attempt, or None if the run has failed for good.

        `failures` includes this one; `noise` is a number from 0 to 1 that spreads the delays.
        """
        if failures >= self.attempts or not self._covers(error):
            return None
        if error.reason is Reason.WORKER_LOST and failures == 1:
            # The first loss of a worker is no evidence against the task.
            return timedelta(0)
        seconds = self._base_delay(failures) * (1 + self.jitter * (2 * noise - 1))
        delay = timedelta(seconds=seconds if self._delays else min(seconds, self._cap))
        return delay if failures < FAST else max(delay, SHORTEST)

    def _covers(self, error: Error) -> bool:
        if error.reason is Reason.GAVE_UP:
            return False
        if error.reason is Reason.WORKER_LOST:
            return True
        said = {*error.types, error.type, *([error.code] if error.code else [])}
        if said & set(self.never):  # type: ignore[arg-type]  # names since __post_init__
            return False
        return not self.on or bool(said & set(self.on))  # type: ignore[arg-type]  # likewise

    def _base_delay(self, failures: int) -> float:
        if self._delays:
            return self._delays[min(failures, len(self._delays)) - 1]
        first, cap = float(self.delay), self._cap  # type: ignore[arg-type]  # seconds since __post_init__
        if self.backoff == "fixed" or not first:
            return min(first, cap)
        try:
            return min(first * float(self.factor) ** (failures - 1), cap)
        except OverflowError:  # after many failures the power exceeds a float, long after it has reached its cap
            return cap

    @property
    def _cap(self) -> float:
        return float(self.max_delay)  # type: ignore[arg-type]  # seconds since __post_init__

    def packed(self) -> dict[str, Any]:
        """Return the fields that differ from the default policy: mostly none, so that rows stay narrow."""
        return {f.name: getattr(self, f.name) for f in fields(self)
                if f.init and getattr(self, f.name) != getattr(DEFAULT, f.name)}  # fmt: skip

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> Self:
        """Rebuild the policy of a row. Ignore unknown fields: a newer version may have added them."""
        known = {f.name for f in fields(cls) if f.init}
        return cls(**{name: value for name, value in packed.items() if name in known})


def _names(setting: str, given: Sequence[Matcher] | Matcher) -> tuple[str, ...]:
    matchers = _items(given)
    return tuple(_name(setting, matcher) for matcher in ((given,) if matchers is None else matchers))


def _name(setting: str, matcher: object) -> str:
    if isinstance(matcher, str) and matcher:
        return matcher
    if isinstance(matcher, type) and issubclass(matcher, BaseException):
        return type_name(matcher)
    raise InvalidSetting(setting, matcher, "name exception types or error codes")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < inf


def _items(value: object) -> tuple[Any, ...] | None:
    """Return the items of an iterable; None if the value is a text, a type or not iterable."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, type)) else None


def _check(setting: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise InvalidSetting(setting, value, f"must be {rule}")


Retry.__init__ = refuse_unknown_options(Retry.__init__)  # type: ignore[method-assign]  # a dataclass makes it itself
DEFAULT = Retry()


def policy_of(packed: bytes, *, turn: bool) -> Retry:
    """Return the policy of a run from its row.

    A workflow that was started by name alone has no policy on its row: its turns get LOST_TURNS.

    Raise what `msgspec` and `Retry` raise if the row cannot be read.
    """
    told = msgspec.json.decode(packed)
    return LOST_TURNS if turn and not told else Retry.unpacked(told)


LOST_TURNS = Retry(attempts=10, delay=1, factor=2, max_delay=600)
"""The policy for turns that are lost with their worker: retry after a second, then back off. Ten lost turns in a row
within some minutes, none of them written, are the fault of the code."""
