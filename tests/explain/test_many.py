"""Many runs at once, asked again when an answer was lost."""

from __future__ import annotations

from typing import Any

from stepwell import App, State
from stepwell.engine import bulk, ends, runs
from stepwell.model.errors import Unavailable
from stepwell.model.ids import new_run_id
from stepwell.store.pool import Database
from tests.factory import a_run, a_start, state_of


async def test_a_repeated_retry_starts_each_run_once(database: Database) -> None:
    origins = [(await a_run(database, State.CANCELLED)).id for _ in range(3)]  # type: ignore[arg-type]
    live = (await a_run(database, State.RUNNING)).id  # type: ignore[arg-type]
    new_ids: dict[Any, Any] = {origin: new_run_id() for origin in [*origins, live]}
    for again in (False, True):
        async with database.transaction() as tx:
            started, _ = await bulk.start_again(tx, new_ids, again=again)
        assert started == {origin: new_ids[origin] for origin in origins}
    assert [await state_of(database, new_ids[origin]) for origin in origins] == [State.PENDING] * 3  # type: ignore[arg-type]


async def test_a_repeated_retry_of_what_has_finished_since_starts_nothing(database: Database) -> None:
    origin = (await a_run(database, State.CANCELLED)).id  # type: ignore[arg-type]
    new_id = new_run_id()
    await bulk.start_again(database, {origin: new_id}, again=False)
    await ends.cancel(database, [new_id])
    async with database.transaction() as tx:
        started, _ = await bulk.start_again(tx, {origin: new_id}, again=True)
    assert started == {origin: new_id}
    assert await state_of(database, new_id) is State.CANCELLED  # type: ignore[arg-type]


async def test_a_cancel_whose_answer_was_lost_counts_what_it_did(
    app: App, database: Database, monkeypatch: Any
) -> None:
    starts = [a_start() for _ in range(3)]
    await runs.start(database, starts)
    ids = [each.id for each in starts]
    cancel, lost = ends.cancel, []

    async def lossy(tx: Any, ids: Any, **how: Any) -> Any:
        moved = await cancel(tx, ids, **how)
        if not lost:
            lost.append(moved)
            raise Unavailable("the answer was lost")
        return moved

    monkeypatch.setattr("stepwell.engine.ends.cancel", lossy)
    ended, asked = await app._opening.client.many.cancel(ids)
    assert (sorted(ended), asked) == (sorted(ids), [])
