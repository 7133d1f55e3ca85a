"""Make anyio's cancel scopes deterministic, only for code on our loop, and only if anyio is imported.

anyio keeps cancel scopes in sets, and cancels their tasks in the order of these sets, which is that of addresses.
Scopes on our loop are hashed by the order of their creation. They have a counter of their own, so that the hashes of
futures do not change.

A cancelled scope cancels its tasks again in every iteration of the loop until they have left it. A task that keeps
waiting keeps the loop busy; a task group of anyio before 4.7 does so for a member that cleans up. Our loop must become
idle, so a scope with too many retries is postponed until after the next event.
"""

from __future__ import annotations

import inspect
import sys
from asyncio import events
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from stepwell.replay.calling import Calling
from stepwell.replay.loop import Loop, kept_by_task

_BACKEND = "anyio._backends._asyncio"

TRIES = 100
"""The most iterations after one event in which a scope cancels its tasks again."""


def order_scopes() -> None:
    """Patch anyio now, or when it is imported. A second call does nothing."""
    there = sys.modules.get(_BACKEND)
    if there is not None:
        _change(there)
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """An import hook that finds anyio's asyncio backend once, and has it patched when it is loaded."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _BACKEND:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loads(spec.loader)  # type: ignore[assignment]  # it delegates to a loader
        return spec


class _Loads:
    """A loader that patches the module that it loads."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _change(module)


def _change(module: Any) -> None:
    if hasattr(module, "_stepwell_scope"):
        return
    module._stepwell_scope = original = module.CancelScope
    module.CancelScope = _ordered(original)
    kept_by_task.append(module._task_states)
    if getattr(module, "iscoroutine", None) is inspect.iscoroutine:
        module.iscoroutine = _is_coroutine


def _is_coroutine(given: Any) -> bool:
    """Tell whether the task groups of anyio before 4.14 accept the object."""
    return inspect.iscoroutine(given) or isinstance(given, Calling)


def _ordered(original: Any) -> Any:
    class CancelScope(original):  # type: ignore[misc]  # known only when anyio is imported
        __slots__ = ("_stepwell_seq",)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            loop: Any = events._get_running_loop()
            self._stepwell_seq = loop.next_scope() if isinstance(loop, Loop) else object.__hash__(self)

        def __hash__(self) -> int:
            return int(self._stepwell_seq)

        def _deliver_cancellation(self, *origin: Any) -> Any:
            again = super()._deliver_cancellation(*origin)
            loop: Any = events._get_running_loop()
            if self._cancel_handle is not None and isinstance(loop, Loop):
                loop.tries_again(self._stepwell_seq, self._cancel_handle, TRIES)
            return again

    CancelScope.__module__, CancelScope.__qualname__ = original.__module__, original.__qualname__
    return CancelScope
