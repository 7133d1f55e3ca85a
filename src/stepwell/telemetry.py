"""Named facts about what happens in the process. Logs, hooks, metrics and tests listen to them.

Without a listener, a fact costs one look at an empty list. On the hot path, facts are published per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stepwell")

Listener = Callable[[str, dict[str, Any]], None]


class Telemetry:
    """Publishes facts to listeners."""

    def __init__(self, *, within: Telemetry | None = None, **always: Any) -> None:
        self._listeners: list[Listener] = [] if within is None else within._listeners
        self._within = within
        self._always = always
        self._timed = False

    def about(self, **always: Any) -> Telemetry:
        """Return a Telemetry with the same listeners, which adds these facts to each fact."""
        return Telemetry(within=self, **self._always, **always)

    @property
    def timed(self) -> bool:
        """True if a listener wants the duration of bodies. Reading a clock for each costs a little."""
        return self._timed if self._within is None else self._within.timed

    def time_bodies(self) -> None:
        """Ask for the duration of bodies."""
        self._timed = True

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(name, facts)` for every fact. Return a function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, name: str, **facts: Any) -> None:
        """Publish a fact. An error of a listener is logged, and goes no further."""
        for listener in self._listeners:
            try:
                listener(name, {**self._always, **facts} if self._always else facts)
            except Exception:
                log.exception("a telemetry listener failed on %s", name)
