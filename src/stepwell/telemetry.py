"""What happens, as plain named facts. Logs, hooks, metrics and tests are all just listeners.

With no listener a fact costs one look at an empty list; on the hot path facts are told per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stepwell")

Listener = Callable[[str, dict[str, Any]], None]


class Telemetry:
    def __init__(self, *, within: Telemetry | None = None, **always: Any) -> None:
        self._listeners: list[Listener] = [] if within is None else within._listeners
        self._within = within
        self._always = always
        self._timed = False

    def about(self, **always: Any) -> Telemetry:
        """The same listeners, told these facts beside each fact that is told here."""
        return Telemetry(within=self, **self._always, **always)

    @property
    def timed(self) -> bool:
        """Whether a listener wants to know how long bodies take: to look at a clock for each costs a little."""
        return self._timed if self._within is None else self._within.timed

    def time_bodies(self) -> None:
        self._timed = True

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(name, facts)` for every fact; the answer is a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, name: str, **facts: Any) -> None:
        for listener in self._listeners:
            try:
                listener(name, {**self._always, **facts} if self._always else facts)
            except Exception:
                log.exception("a telemetry listener failed on %s", name)
