"""Failure handlers: a run that fails for good starts one, in the transaction that records the failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stepwell import App, FailedRun, InvalidSetting, Retry, RunFailed
from stepwell.engine import ends, forks, runs, settle, turns
from stepwell.model.commands import Ended
from stepwell.model.events import Event, EventType
from stepwell.model.ids import new_claim_id, new_run_id
from stepwell.model.outcome import Completed, Failed, Snoozed
from stepwell.model.run import Claim
from stepwell.model.states import State
from stepwell.model.turn import Advance, Consequences
from stepwell.replay.replay import LONG_AGO
from stepwell.services.reaper import LOST
from stepwell.store.pool import Transaction
from tests.factory import BOOM, a_start, a_worker, another_claim, claimed, execute, force

HANDLER = msgspec.json.encode(
    {"kind": "task", "name": "tests.handler", "queue": "handlers", "priority": 7, "retry": {}, "tags": None,
     "keep": None, "timeout": 30.0, "delay": None, "expires": None, "deadline": None}
)  # fmt: skip
ONCE = Retry(attempts=1)

Record = Callable[[Transaction, Claim, Consequences], Awaitable[Any]]


async def a_claim(tx: Transaction, **changes: Any) -> Claim:
    return await claimed(tx, a_start(queue="work", retry=ONCE, on_failure=HANDLER, tags=b'{"tenant": 3}', **changes))


async def handlers(tx: Transaction) -> list[dict[str, Any]]:
    found = await tx.connection.fetch("select * from stepwell.runs where name = 'tests.handler'")
    return [dict(row) for row in found]


async def by_its_worker(tx: Transaction, claim: Claim, after: Consequences) -> None:
    settled = await settle.apply(tx, settle.plan([(claim, Failed(BOOM))]))
    after.wakes |= settled.after.wakes


async def by_the_reaper(tx: Transaction, claim: Claim, after: Consequences) -> None:
    await execute(tx, "update stepwell.workers set lease_until = stepwell.now() - interval '1s'")
    lost = await runs.lock_lost_claims(tx, limit=10, calm=timedelta(0))
    settled = await settle.apply(tx, settle.plan([(each, LOST) for each in lost]))
    after.wakes |= settled.after.wakes


async def by_its_deadline(tx: Transaction, claim: Claim, after: Consequences) -> None:
    await force(tx, claim.id, State.PENDING)
    await execute(tx, "update stepwell.runs set deadline_at = stepwell.now() - interval '1s' where id = $1", claim.id)
    await ends.fail_overdue(tx, after, limit=10)


async def by_a_turn(tx: Transaction, claim: Claim, after: Consequences) -> None:
    ended = Ended(EventType.WORKFLOW_FAILED, error=BOOM)
    event = Event(1, ended.type, LONG_AGO, error=BOOM)
    advance = Advance(claim, recorded=1, events=[event], ended=ended).leave()
    written = await turns.advance(tx, [advance], worker=await a_worker(tx), claim_id=new_claim_id())
    after.wakes |= written.wakes


@pytest.mark.parametrize("record", [by_its_worker, by_the_reaper, by_its_deadline, by_a_turn])
async def test_whoever_records_a_failure_starts_its_handler_once(tx: Transaction, record: Record) -> None:
    claim, after = await a_claim(tx), Consequences()
    await record(tx, claim, after)
    (handler,) = await handlers(tx)
    assert (handler["queue"], handler["priority"], handler["state"]) == ("handlers", 7, "pending")
    assert (handler["parent_id"], handler["on_failure"]) == (claim.id, None)
    assert handler["timeout"] == timedelta(seconds=30)
    (failed,) = msgspec.json.decode(handler["input"])["*"]
    assert (failed["id"], failed["name"], failed["input"]) == (str(claim.id), "tests.task", {"n": 1})
    assert failed["tags"] == {"tenant": 3}
    assert failed["error"]["message"]
    assert "handlers" in after.wakes
    (row,) = await tx.connection.fetch(
        "select stepwell.handler_id(id, finished_at) as id from stepwell.finished_runs where id = $1", claim.id
    )
    assert handler["id"] == row["id"]


async def test_a_lost_claim_starts_no_handler(tx: Transaction) -> None:
    claim = await a_claim(tx)
    settled = await settle.apply(tx, settle.plan([(another_claim(claim), Failed(BOOM))]))
    assert (settled.moved, await handlers(tx)) == (set(), [])


async def test_only_what_failed_for_good_has_a_handler(tx: Transaction) -> None:
    completed, snoozed, cancelled, late = [await a_claim(tx) for _ in range(4)]
    again = await claimed(tx, a_start(queue="work", retry=Retry(attempts=2), on_failure=HANDLER))
    outcomes = [(completed, Completed(b"1")), (snoozed, Snoozed(timedelta(1))), (again, Failed(BOOM))]
    await settle.apply(tx, settle.plan(outcomes))
    await ends.cancel(tx, [cancelled.id])
    await force(tx, late.id, State.PENDING)
    await execute(tx, "update stepwell.runs set expires_at = stepwell.now() - interval '1s' where id = $1", late.id)
    assert [each.id for each in await ends.expire(tx, Consequences(), limit=10)] == [late.id]
    assert await handlers(tx) == []


async def test_what_is_started_again_has_the_same_handler(tx: Transaction) -> None:
    claim = await a_claim(tx)
    await by_its_worker(tx, claim, Consequences())
    new_id = new_run_id()
    await forks.start_again(tx, claim.id, new_id, again=False)
    found = await tx.connection.fetchval("select on_failure from stepwell.runs where id = $1", new_id)
    assert msgspec.json.decode(found) == msgspec.json.decode(HANDLER)


async def test_a_handler_runs_with_what_failed_and_has_no_handler(app: App) -> None:
    heard: list[FailedRun] = []

    @app.task(retry=ONCE)
    async def last_resort(failed: FailedRun) -> None:
        raise AssertionError("a handler has no handler")

    @app.task(queue="support", retry=ONCE, tags={"team": "support"}, on_failure=last_resort)
    async def tell(failed: FailedRun) -> None:
        heard.append(failed)
        raise ValueError("and this failed, too")

    @app.task(retry=ONCE, on_failure=tell)
    async def ship(order: str, *, cents: int = 5) -> None:
        raise LookupError("no such address")

    async with app, app.worker():
        run = await ship.options(tags={"tenant": "acme"}).start("7")
        with pytest.raises(RunFailed):
            await run.result(timeout=10)
        (told,) = (await app.runs(name=tell.name)).items
        with pytest.raises(RunFailed, match="and this failed"):
            await app.run(told.id).result(timeout=10)
        assert (await app.runs(name=last_resort.name)).items == []
    (failed,) = heard
    assert (failed.id, failed.name, failed.tags) == (run.id, ship.name, {"tenant": "acme"})
    assert failed.input == {"order": "7"}
    assert (failed.error.type, failed.error.message) == ("LookupError", "no such address")
    assert (told.queue, told.tags, told.parent_id) == ("support", {"team": "support"}, run.id)


async def test_a_workflow_and_its_child_each_have_their_own_handler(app: App) -> None:
    heard: list[str] = []

    @app.task
    async def tell(failed: FailedRun) -> None:
        heard.append(failed.name)

    @app.task(retry=ONCE, on_failure=tell)
    async def work() -> None:
        raise ValueError("no")

    @app.workflow(on_failure=tell)
    async def flow() -> None:
        await work()

    async with app, app.worker():
        with pytest.raises(RunFailed):
            await (await flow.start()).result(timeout=10)
        for told in (await app.runs(name=tell.name)).items:
            await app.run(told.id).result(timeout=10)
    assert sorted(heard) == sorted([work.name, flow.name])


async def test_a_workflow_may_be_the_handler(app: App) -> None:
    @app.workflow
    async def make_good(failed: FailedRun) -> str:
        return failed.error.message

    @app.task(retry=ONCE)
    async def charge() -> None:
        raise ValueError("declined")

    async with app, app.worker():
        with pytest.raises(RunFailed):
            await (await charge.options(on_failure=make_good).start()).result(timeout=10)
        (told,) = (await app.runs(name=make_good.name)).items
        assert await app.run(told.id).result(timeout=10) == "declined"
        assert told.kind == "workflow"


def test_what_cannot_take_a_failed_run_is_refused_where_it_is_named(app: App) -> None:
    @app.task
    async def takes_text(text: str) -> None: ...

    @app.task
    async def takes_two(failed: FailedRun, more: int) -> None: ...

    @app.task(unique=True)
    async def is_unique(failed: FailedRun) -> None: ...

    def bare(failed: FailedRun) -> None: ...

    for wrong in (takes_text, takes_two, is_unique, bare, "tests.tell"):
        with pytest.raises(InvalidSetting, match="on_failure"):
            app.task(on_failure=wrong)(_body)  # type: ignore[call-overload]


async def _body() -> None: ...
