"""The watch: what is held here is compared with the table now and then, without a word from anyone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from stepwell import App
from stepwell.model.ids import ClaimId
from stepwell.model.run import Claim
from stepwell.worker.attempts import Attempts
from stepwell.worker.direct import DirectLink
from tests.waiting_for import until


async def test_what_was_not_here_at_the_last_look_is_not_asked_for(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all that is claimed ends within the second between two looks: to ask for it would be a row for each."""
    happened: list[str] = []
    looks, held = Attempts.give_back_stale, DirectLink.held

    def noted_look(attempts: Attempts) -> None:
        happened.append("look")
        looks(attempts)

    async def noted_held(link: DirectLink, claim_ids: Collection[ClaimId] | None) -> Any:
        happened.append("asked")
        return await held(link, claim_ids)  # type: ignore[arg-type]

    monkeypatch.setattr("stepwell.worker.claiming.watch.WATCH", 0.05)
    monkeypatch.setattr("stepwell.worker.claiming.watch.WATCH_ALL", 600.0)
    monkeypatch.setattr(Attempts, "give_back_stale", noted_look)
    monkeypatch.setattr(DirectLink, "held", noted_held)
    go_on = asyncio.Event()

    begin = Attempts.begin

    def noted_begin(attempts: Attempts, claims: Sequence[Claim]) -> None:
        happened.clear()
        begin(attempts, claims)

    @app.task
    async def work() -> None:
        await go_on.wait()

    async def has_looked() -> bool:
        return worker._link.hears and happened.count("look") > 2

    async def has_asked() -> bool:
        return "asked" in happened

    async with app.worker() as worker:
        await until(has_looked)  # it has its lease by then, and hears: both make it look at all
        monkeypatch.setattr(Attempts, "begin", noted_begin)
        happened.clear()
        await work.start()
        await until(has_asked)
        go_on.set()
    assert happened[: happened.index("asked")] == ["look", "look"]
