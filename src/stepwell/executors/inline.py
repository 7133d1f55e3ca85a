"""The inline executor: `async def` bodies on the worker's own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from stepwell.executors.base import Body, contained, nobody


class InlineExecutor:
    @staticmethod
    def refuses(fn: Callable[..., Any]) -> str | None:
        return None if inspect.iscoroutinefunction(fn) else "inline is for async def, thread is for def"

    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = nobody) -> bytes:
        begun()
        signature = body.signature
        try:
            args, kwargs = signature.decode_input(input)
            return signature.encode_result(await body.fn(*args, **kwargs))
        except (SystemExit, KeyboardInterrupt) as error:
            raise contained(error) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # This task was not cancelled: the body awaited something that was. The worker would take the error for a
            # cancellation of its own.
            raise contained(error) from error

    @property
    def stuck(self) -> int:
        return 0

    async def close(self, grace: float = 0.0) -> None:
        """Nothing to close: calls belong to the tasks that await them."""
