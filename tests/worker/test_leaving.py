"""A worker gives up its lease by the channel that renews it; if that is gone, by another."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from stepwell import App
from stepwell.worker.direct import DirectHold, DirectLink

SOON = 20


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[DirectLink]:
    """The links of the channels that were opened for leases."""
    links: list[DirectLink] = []
    lease = DirectLink.lease

    def noted(link: DirectLink) -> AbstractAsyncContextManager[Any]:
        links.append(link)
        return lease(link)

    monkeypatch.setattr(DirectLink, "lease", noted)
    return links


async def states(app: App) -> list[str]:
    return [each.state for each in await app.workers()]


async def test_a_worker_that_stops_gives_up_its_lease_by_the_channel_that_renewed_it(
    app: App, opened: list[DirectLink]
) -> None:
    async with app.worker() as worker:
        await asyncio.wait_for(worker.ready.wait(), SOON)
        assert await states(app) == ["live"]
    assert await states(app) == ["stopped"]
    assert len(opened) == 1


async def test_a_worker_whose_lease_fails_for_good_gives_it_up_by_another_channel(
    app: App, opened: list[DirectLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_args: object) -> None:
        raise RuntimeError("permission denied for table workers")

    with pytest.raises(RuntimeError, match="permission denied"):
        async with app.worker() as worker:
            await asyncio.wait_for(worker.ready.wait(), SOON)
            monkeypatch.setattr(DirectHold, "renew", fails)
            await asyncio.Event().wait()
    assert await states(app) == ["stopped"]
    assert len(opened) == 2
