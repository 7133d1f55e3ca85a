"""What tests of workflows ask again and again."""

from __future__ import annotations

from typing import Any

from stepwell import Run, State
from tests.waiting_for import until


async def types_of(run: Run[Any]) -> list[str]:
    """The types of its events, after a look that they have no gap."""
    history = await run.history()
    assert [event.idx for event in history] == list(range(1, len(history) + 1))
    return [event.type for event in history]


async def reaches(run: Run[Any], state: State, *, within: float = 30.0) -> None:
    async def there() -> bool:
        return (await run.info()).state is state

    await until(there, within=within)


async def has(run: Run[Any], type: str, count: int = 1) -> None:
    """Once its history has this many events of the type."""

    async def there() -> bool:
        return [event.type for event in await run.history()].count(type) >= count

    await until(there)
