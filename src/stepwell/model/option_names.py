"""Errors for misspelt options. They name the option that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from stepwell.model.errors import WrongUse

F = TypeVar("F", bound=Callable[..., Any])

# Names of the same options in other systems.
_ELSEWHERE = {
    "retries": "retry", "max_retries": "retry", "attempts": "retry", "retry_policy": "retry",
    "countdown": "delay", "eta": "at", "run_at": "at", "ttl": "expires",
    "time_limit": "timeout", "execution_timeout": "timeout", "run_timeout": "timeout",
    "idempotency_key": "key", "task_queue": "queue", "queue_name": "queue",
    "database_url": "dsn", "url": "dsn", "concurrency": "slots",
}  # fmt: skip


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean retry=?', or an empty text if no option is similar."""
    meant = {each: each for each in known}
    meant.update({there: here for there, here in _ELSEWHERE.items() if here in meant and there not in meant})
    near = get_close_matches(name, meant, n=1)
    return f" Did you mean {meant[near[0]]}=?" if near else ""


def refuse_unknown_options(fn: F) -> F:
    """Make `fn` raise WrongUse for an option that it does not have, where Python would raise a bare TypeError."""
    parameters = inspect.signature(fn).parameters.values()
    accepted = frozenset(each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY)
    options = accepted - {"self", "fn"}

    @wraps(fn)
    def checked(*args: Any, **given: Any) -> Any:
        if not accepted.issuperset(given):
            raise unknown_option(fn.__qualname__, next(name for name in given if name not in accepted), options)
        return fn(*args, **given)

    return cast(F, checked)


def unknown_option(call: str, name: str, known: Iterable[str]) -> WrongUse:
    """Return the error for an unknown option. It shows no value, because the value may be a DSN with a password."""
    call = call.removesuffix(".__init__").replace("Registering.", "App.")
    known = sorted(known)
    return WrongUse(f"{call}() has no option {name!r}.{did_you_mean(name, known)} Its options are {', '.join(known)}")
