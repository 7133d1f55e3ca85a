"""What happens, as plain named facts. Logs, metrics and tests are all just listeners.

With no listener a fact costs one look at an empty list; on the hot path facts are told per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stepwell")

Listener = Callable[[str, dict[str, Any]], None]


class Telemetry:
    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(name, facts)` for every fact; the answer is a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, name: str, **facts: Any) -> None:
        for listener in self._listeners:
            try:
                listener(name, facts)
            except Exception:
                log.exception("a telemetry listener failed on %s", name)
