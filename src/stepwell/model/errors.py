"""Every public error.

StepwellError
├── UsageError        the caller's code is wrong; raised at the call, before any write
│   ├── WrongUse   DuplicateName   UnknownName   NotEncodable   NotDecodable   InvalidSetting   KeyConflict
│   ├── NotDurable
├── StateError        the run is not in the state that the caller expected
│   ├── NotFound   AlreadyFinished   NotFinished   ClaimLost   NewerCheckpoint
├── RunUnsuccessful   raised by run.result()
│   ├── RunFailed   StepFailed   RunCancelled   RunExpired
├── UpdateRejected    raised by run.update()
│   ├── UpdateFailed
├── Nondeterminism    a workflow's code does not fit its history
├── SchemaError       the database's schema does not fit this code
└── Unavailable       the database cannot be reached; safe to try again
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self
from uuid import UUID


@dataclass(eq=False)
class StepwellError(Exception):
    """Something in Stepwell went wrong."""

    def __str__(self) -> str:
        """Return the first paragraph of the docstring, with the fields filled in."""
        message = " ".join((type(self).__doc__ or type(self).__name__).split("\n\n")[0].split())
        return message.format(**self.facts())

    def facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts())

    @classmethod
    def rebuild(cls, facts: dict[str, Any]) -> Self:
        return cls(**facts)


def _rebuild(cls: type[StepwellError], facts: dict[str, Any]) -> StepwellError:
    return cls.rebuild(facts)


class UsageError(StepwellError):
    """The call is wrong: fix the code."""


class StateError(StepwellError):
    """The run is not in the state that the caller expected."""


class RunUnsuccessful(StepwellError):
    """The run finished without a result."""


@dataclass(eq=False)
class WrongUse(UsageError):
    """{reason}"""

    reason: str


@dataclass(eq=False)
class DuplicateName(UsageError):
    """Two definitions are called {name!r}: {first} and {second}. Give one of them another name=."""

    name: str
    first: str
    second: str


@dataclass(eq=False)
class UnknownName(UsageError):
    """No definition is called {name!r} here.{hint}"""

    name: str
    hint: str = ""


@dataclass(eq=False)
class NotEncodable(UsageError):
    """{where} cannot be stored: {reason}"""

    where: str
    reason: str


@dataclass(eq=False)
class NotDecodable(UsageError):
    """{where} does not fit its type: {reason}"""

    where: str
    reason: str


@dataclass(eq=False)
class InvalidSetting(UsageError):
    """{setting} = {value!r}: {reason}"""

    setting: str
    value: Any
    reason: str


@dataclass(eq=False)
class KeyConflict(UsageError):
    """The key {key!r} belongs to run {run_id}, which was started with another name or input. Use another
    key, or start it with the same input."""

    key: str
    run_id: UUID


@dataclass(eq=False)
class NotFound(StateError):
    """No run has the {what} {value!r}."""

    what: str
    value: str


@dataclass(eq=False)
class AlreadyFinished(StateError):
    """Run {run_id} is already {state}."""

    run_id: UUID
    state: str


@dataclass(eq=False)
class NotFinished(StateError):
    """Run {run_id} is {state}: only a finished run can be retried."""

    run_id: UUID
    state: str


@dataclass(eq=False)
class NotDurable(UsageError):
    """A workflow cannot use {what}: its replay after a crash would give another result ({line}). {remedy}"""

    what: str
    line: str
    remedy: str = "Do it in a step or a task, and await that."


@dataclass(eq=False)
class Nondeterminism(StepwellError):
    """The code of {name} does not fit the history of run {run_id}: event {idx} of the history is {recorded}, but the
    code does {new} ({line}). The run did not fail: it waits for code that fits. Bring the old code back, or guard the
    new code with workflow.patched("…")."""

    run_id: UUID
    name: str
    idx: int
    recorded: str
    new: str
    line: str


@dataclass(eq=False)
class ClaimLost(StateError):
    """Attempt {attempt} of run {run_id} lost its claim: drop the work, and do not repeat the write."""

    run_id: UUID
    attempt: int


@dataclass(eq=False)
class NewerCheckpoint(StateError):
    """The checkpoint of run {run_id} was saved with schema {saved}, but this code knows only schema {known}. The
    checkpoint stays unchanged, for a worker with the newer code."""

    run_id: UUID
    saved: int
    known: int


@dataclass(eq=False)
class RunFailed(RunUnsuccessful):
    """{name} {run_id} failed at attempt {attempt} ({reason}): {type}: {message}"""

    run_id: UUID
    name: str
    attempt: int
    type: str
    message: str
    reason: str
    code: str | None = None
    traceback: str | None = None


@dataclass(eq=False)
class StepFailed(RunFailed):
    """Step {name} of {run_id} failed at attempt {attempt} ({reason}): {type}: {message}"""


@dataclass(eq=False)
class RunCancelled(RunUnsuccessful):
    """{name} {run_id} was cancelled."""

    run_id: UUID
    name: str


@dataclass(eq=False)
class RunExpired(RunUnsuccessful):
    """{name} {run_id} expired: it was not started, or not started again, in time."""

    run_id: UUID
    name: str


@dataclass(eq=False)
class UpdateRejected(StepwellError):
    """Run {run_id} refused the update {name!r}: {type}: {message}"""

    run_id: UUID
    name: str
    type: str
    message: str


@dataclass(eq=False)
class UpdateFailed(UpdateRejected):
    """The update {name!r} of run {run_id} failed: {type}: {message}"""


@dataclass(eq=False)
class SchemaError(StepwellError):
    """Schema {schema!r}: {reason}"""

    schema: str
    reason: str


@dataclass(eq=False)
class Unavailable(StepwellError):
    """The database cannot be reached ({reason}). The request may have taken effect all the same: a start is safe to
    repeat if it has a key."""

    reason: str


for _error in [each for each in globals().values() if isinstance(each, type) and issubclass(each, StepwellError)]:
    # Stored errors and retry policies name an error type by the module from which users import it.
    _error.__module__ = "stepwell"
del _error
