"""Options of a start: a definition's defaults, changed by `.options(...)`, all checked where they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from stepwell.codec import encode
from stepwell.context.current import family
from stepwell.model.counting import whole
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import InvalidSetting, NotEncodable
from stepwell.model.keeping import Keeping, checked_keep
from stepwell.model.option_names import unknown_option
from stepwell.model.pins import claim_name
from stepwell.model.retry import DEFAULT, Retry
from stepwell.model.start import Terms

LimitBy = Callable[..., object]


@runtime_checkable
class Handler(Protocol):
    """A definition that can be started when a run has failed for good."""

    def as_handler(self) -> bytes:
        """Return its terms, as the row of the run carries them. Raise InvalidSetting if it cannot take a FailedRun."""
        ...


LONGEST_NAME, _LONGEST_QUEUE, _LONGEST_KEY, _LARGEST_TAGS = 200, 100, 500, 10_000
_YEARS = range(1970, 3000)
"""Years that `at=` may lie in. Times beyond mean "never" or "ever since", and nothing can wait for those."""
_LONGEST_UNIQUE, _LONGEST_LIMIT_KEY = 250, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of runs to be started: the definition's defaults, changed by `.options(...)`."""

    queue: str = "default"
    priority: int = 50
    retry: Retry = DEFAULT
    timeout: Duration | None = None
    expires: Duration | None = None
    key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    deadline: Duration | None = None
    unique: bool | str | None = None
    debounce: Duration | None = None
    limit_by: LimitBy | None = None
    per_key: int | None = None
    keep: Keeping | None = None
    tags: Mapping[str, Any] | None = None
    on_failure: Handler | None = None
    """Task or workflow that is started when the run has failed for good."""
    pin: str | None = None
    """Version of the code that alone may run it."""
    tx: Any = field(default=None, repr=False, compare=False)
    """The verbs in a transaction of the user's, if the runs are to be started in one."""
    leads_elsewhere: str | None = field(init=False, repr=False, default=None)
    """Option by which a start may lead to an existing run, or to none. A workflow's own runs cannot have it."""
    packed_retry: bytes = field(init=False, repr=False, default=b"{}")
    packed_tags: bytes | None = field(init=False, repr=False, default=None)
    packed_handler: bytes | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        checked_text("queue", self.queue, _LONGEST_QUEUE)
        if self.key is not None:
            checked_text("key", self.key, _LONGEST_KEY)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or not 1 <= self.priority <= 100:
            raise InvalidSetting("priority", self.priority, "must be an int from 1 to 100; lower goes first")
        if not isinstance(self.retry, Retry):
            raise InvalidSetting("retry", self.retry, "must be a Retry(...)")
        for name in ("timeout", "expires", "delay", "deadline", "debounce"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive(name, given, zero=name == "delay"))
        self._check_at()
        self._check_unique()
        self._check_limit()
        checked_keep(self.keep)
        elsewhere = next((name for name in ("unique", "debounce", "tx") if getattr(self, name)), None)
        object.__setattr__(self, "leads_elsewhere", elsewhere)
        if self.retry is not DEFAULT:
            object.__setattr__(self, "packed_retry", msgspec.json.encode(self.retry.packed()))
        if self.tags is not None:
            object.__setattr__(self, "packed_tags", _packed_tags(self.tags))
        if self.on_failure is not None:
            if not isinstance(self.on_failure, Handler):
                raise InvalidSetting(
                    "on_failure",
                    self.on_failure,
                    "must be a task or a workflow, made by @app.task or @app.workflow",
                )
            object.__setattr__(self, "packed_handler", self.on_failure.as_handler())

    def _check_at(self) -> None:
        if self.at is None:
            return
        if not isinstance(self.at, datetime) or self.at.tzinfo is None:
            raise InvalidSetting("at", self.at, "must be a datetime with a time zone")
        if self.at.year not in _YEARS:
            raise InvalidSetting("at", self.at, f"must lie between the years {_YEARS[0]} and {_YEARS[-1]}")
        if self.delay is not None:
            raise InvalidSetting("at", self.at, "give at= or delay=, not both")

    def _check_unique(self) -> None:
        if self.unique is not None and not isinstance(self.unique, bool):
            checked_text("unique", self.unique, _LONGEST_UNIQUE)
        if self.unique and self.key is not None:
            raise InvalidSetting("unique", self.unique, "give key= or unique=, not both")
        if self.debounce is None:
            return
        if not isinstance(self.unique, str):
            raise InvalidSetting(
                "debounce", self.debounce, "give unique='…' too: starts with the same text are debounced"
            )
        if self.delay is not None or self.at is not None:
            raise InvalidSetting("debounce", self.debounce, "debounce= is a delay itself: leave out delay= and at=")
        if self.limit_by is not None:
            raise InvalidSetting("debounce", self.debounce, "cannot be combined with limit_by=")

    def _check_limit(self) -> None:
        if self.limit_by is not None and not callable(self.limit_by):
            raise InvalidSetting(
                "limit_by", self.limit_by, "must be a function that takes the task's arguments and returns a str"
            )
        if self.per_key is None:
            return
        whole("per_key", self.per_key)
        if self.limit_by is None:
            raise InvalidSetting("per_key", self.per_key, "give limit_by= too: it returns the key that is limited")

    @property
    def tells_apart(self) -> bool:
        """True if its starts differ in more than their input."""
        return self.key is not None or bool(self.unique) or self.limit_by is not None

    def limit_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the limit key of a call: what `limit_by` returns for its arguments, as text; None for no limit."""
        found = None if self.limit_by is None else self.limit_by(*args, **kwargs)
        if found is None:
            return None
        return checked_text("limit_by", found if isinstance(found, str) else str(found), _LONGEST_LIMIT_KEY)

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Return these options with some changed. Raise InvalidSetting for an unknown name."""
        known = {f.name for f in fields(self) if f.init}
        if unknown := changes.keys() - known:
            raise unknown_option("options", min(unknown), known - {"pin"})
        return replace(self, **changes)

    def terms(self, name: str, kind: str = "task") -> Terms:
        """Return the terms of runs that are started here and now."""
        parent_id, root_id = family()
        return Terms(
            name,
            self.queue,
            self.priority,
            self.packed_retry,
            self.packed_tags,
            self.timeout,  # type: ignore[arg-type]  # timedeltas since __post_init__
            self.delay if self.debounce is None else self.debounce,  # type: ignore[arg-type]  # likewise
            self.at,
            self.expires,  # type: ignore[arg-type]  # likewise
            self.deadline,  # type: ignore[arg-type]  # likewise
            None if self.limit_by is None else self.per_key or 1,
            self.keep,
            parent_id,
            root_id,
            kind,
            self.pin,
            self.packed_handler,
        )

    def packed_terms(self, name: str, kind: str) -> bytes:
        """Return the terms of a failure handler with these options, as the row of the run carries them."""
        for setting in ("key", "unique", "debounce", "limit_by", "at", "tx"):
            if getattr(self, setting):
                raise InvalidSetting(
                    "on_failure", name, f"a failure handler cannot have the option {setting}=: leave it out"
                )
        terms = self.terms(name, kind)
        waits = {"timeout": terms.timeout, "delay": terms.delay, "expires": terms.expires, "deadline": terms.deadline}
        return msgspec.json.encode(
            {
                "kind": kind,
                "name": claim_name(name, terms.pin),
                "queue": terms.queue,
                "priority": terms.priority,
                "retry": msgspec.Raw(terms.retry),
                "tags": None if terms.tags is None else msgspec.Raw(terms.tags),
                "keep": terms.keep,
                **{wait: None if length is None else length.total_seconds() for wait, length in waits.items()},
            }
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A start for `start_many` that needs keyword arguments or options of its own.

    >>> await charge.start_many([Call((7, 1999), options={"key": "order-7"}), Call((8,), {"cents": 250})])
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.args, (tuple, list)):
            raise InvalidSetting("Call(args)", self.args, "must be a tuple of arguments: write Call((value,)) for one")
        checked_mapping("Call(kwargs)", self.kwargs)
        checked_mapping("Call(options)", self.options)


def checked_text(setting: str, value: Any, longest: int) -> str:
    """Check a text for a column of the tables: not empty, printable, not too long."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidSetting(setting, value, "must be a non-empty str of printable characters")
    if len(value.encode()) > longest:
        raise InvalidSetting(setting, value, f"must not be longer than {longest} bytes")
    return value


def checked_texts(setting: str, value: Any, longest: int) -> list[str]:
    """Check a list of names. A bare text is refused, since Python would take it for a list of its letters."""
    return [checked_text(setting, each, longest) for each in _items(setting, value, "names")]


def checked_ids(setting: str, value: Any) -> list[UUID]:
    """Check a list of ids, each a UUID or its text."""
    ids = _items(setting, value, "ids")
    try:
        return [each if isinstance(each, UUID) else UUID(each) for each in ids]
    except (ValueError, AttributeError, TypeError):
        raise InvalidSetting(setting, value, "must be a list of ids, each a UUID") from None


def checked_mapping(setting: str, value: Any) -> Mapping[str, Any]:
    """Check a mapping whose keys are names."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidSetting(setting, value, "must be a mapping of names to values")
    return value


def _items(setting: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, (str, UUID)):
        raise InvalidSetting(setting, value, f"must be a list of {what}: write [{str(value)!r}] for one")
    if isinstance(value, (bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise InvalidSetting(setting, value, f"must be a list of {what}")
    return list(value)


def positive(setting: str, value: Duration, *, zero: bool = False) -> timedelta:
    """Check a duration of more than zero; with `zero`, zero is allowed."""
    length = duration(value, setting=setting)
    if not length and not zero:
        raise InvalidSetting(setting, value, "must be longer than zero")
    return length


def _packed_tags(tags: Mapping[str, Any]) -> bytes | None:
    if not checked_mapping("tags", tags):
        return None
    packed = encode(dict(tags), where="tags")
    if len(packed) > _LARGEST_TAGS:
        raise NotEncodable("tags", f"they take {len(packed)} bytes, more than the limit of {_LARGEST_TAGS}")
    return packed
