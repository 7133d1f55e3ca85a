"""Checkpoints: fenced by the claim, versioned, and there for the next attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pydantic
import pytest

from stepwell import App, ClaimLost, NewerCheckpoint, NotDecodable, NotEncodable, NotInARun, Retry, WrongUse, current
from stepwell.engine import checkpoints, ends, runs, settle
from stepwell.model.errors import InvalidSetting, Unavailable
from stepwell.model.ids import new_claim_id
from stepwell.model.outcome import Completed, Failed, Released
from stepwell.model.run import Wanted
from stepwell.services.partitions import Partitions
from stepwell.store.pool import Database, Transaction
from tests.factory import BOOM, a_worker, another_claim, claimed, execute
from tests.inside import bodies
from tests.waiting_for import until

again = Retry(attempts=5, delay=0)


@dataclass
class Place:
    row: int
    file: str = "a.csv"


class Spot(msgspec.Struct):
    row: int


class Point(pydantic.BaseModel):
    row: int


# -- the table


async def test_every_save_is_a_version_and_the_last_one_is_loaded(tx: Transaction) -> None:
    claim = await claimed(tx)
    assert await checkpoints.load(tx, claim) is None
    assert [await checkpoints.save(tx, claim, b"%d" % n, schema=1, after=n or None) for n in range(3)] == [
        (1, True), (2, True), (3, True),
    ]  # fmt: skip
    saved = await checkpoints.load(tx, claim)
    assert saved is not None
    assert (saved.version, saved.schema, saved.state) == (3, 1, b"2")


async def test_who_never_held_the_claim_can_neither_save_nor_load(tx: Transaction) -> None:
    claim = await claimed(tx)
    await checkpoints.save(tx, claim, b"1", schema=1)
    for verb in (
        checkpoints.save(tx, another_claim(claim), b"2", schema=1),
        checkpoints.load(tx, another_claim(claim)),
    ):
        with pytest.raises(ClaimLost):
            await verb
    saved = await checkpoints.load(tx, claim)
    assert saved is not None
    assert saved.state == b"1"


@pytest.mark.parametrize("outcome", [Completed(b"1"), Failed(BOOM), None], ids=["completed", "failed", "cancelled"])
async def test_a_zombies_save_is_refused(tx: Transaction, outcome: Any) -> None:
    claim = await claimed(tx)
    if outcome is None:
        await ends.cancel(tx, [claim.id])
    else:
        await settle.apply(tx, settle.plan([(claim, outcome)]))
    with pytest.raises(ClaimLost):
        await checkpoints.save(tx, claim, b"1", schema=1)


async def test_a_save_waits_for_who_takes_its_claim_away_and_is_then_refused(database: Database) -> None:
    claim = await claimed(database)  # type: ignore[arg-type]
    async with database.transaction() as cancelling:
        await ends.cancel(cancelling, [claim.id])
        saving = asyncio.create_task(checkpoints.save(database, claim, b"1", schema=1))
        await until(lambda: saves_waiting(database))
    with pytest.raises(ClaimLost):
        await saving


async def saves_waiting(database: Database) -> Any:
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%checkpoints%'"
    async with database.transaction() as look:
        return await look.connection.fetch(waiting)


async def test_older_code_neither_reads_nor_overwrites_what_newer_code_saved(tx: Transaction) -> None:
    claim = await claimed(tx)
    await checkpoints.save(tx, claim, b"2", schema=2)
    with pytest.raises(NewerCheckpoint, match="schema 2, but this code knows only schema 1"):
        await checkpoints.save(tx, claim, b"1", schema=1)
    saved = await checkpoints.load(tx, claim)
    assert saved is not None
    assert saved.state == b"2"
    assert await checkpoints.save(tx, claim, b"3", schema=3, after=1) == (2, True)


async def test_a_save_takes_the_place_of_what_its_attempt_saved_last_and_of_nothing_else(tx: Transaction) -> None:
    """What comes late, though its repetition went through, would undo all that was saved since."""
    claim = await claimed(tx)
    for late, after in enumerate([None, 1, 2]):
        assert await checkpoints.save(tx, claim, b"1", schema=1, after=after) == (late + 1, True)
        assert await checkpoints.save(tx, claim, b"0", schema=1, after=after) == (late + 1, False)
    await settle.apply(tx, settle.plan([(claim, Released())]))
    wanted = Wanted(await a_worker(tx), [claim.queue], [claim.name], 1, alone=True)
    (claim,) = (await runs.claim(tx, wanted, new_claim_id())).claims
    assert await checkpoints.save(tx, claim, b"0", schema=1, after=3) == (3, False)
    assert await checkpoints.save(tx, claim, b"1", schema=1) == (4, True)


async def test_the_checkpoints_of_finished_runs_are_forgotten_and_those_of_live_ones_kept(database: Database) -> None:
    claims = [await claimed(database) for _ in range(5)]  # type: ignore[arg-type]
    for claim in claims:
        await checkpoints.save(database, claim, b"1", schema=1)
    await settle.apply(database, settle.plan([(claim, Completed(b"1")) for claim in claims[:3]]))
    assert await checkpoints.forget(database, limit=2) == 3
    assert await checkpoints.forget(database, limit=2) == 0
    await ends.cancel(database, [claims[3].id])
    await Partitions(database, keep=None).run_once()
    async with database.transaction() as tx:
        left = await tx.connection.fetch("select run_id from stepwell.checkpoints")
    assert [row["run_id"] for row in left] == [claims[4].id]


# -- bodies


@pytest.mark.parametrize(
    ("state", "of"),
    [
        (Place(1, "b.csv"), Place),
        (Spot(3), Spot),
        (Point(row=4), Point),
        ({"rows": [1, 2], "done": None}, dict),
        ([1, "a"], list),
        (17, int),
        ("text", str),
    ],
    ids=["dataclass", "msgspec", "pydantic", "dict", "list", "int", "text"],
)
async def test_the_next_attempt_finds_what_the_last_one_saved(app: App, state: Any, of: Any) -> None:
    found: list[Any] = []

    @app.task(retry=again)
    async def work() -> None:
        found.append(await current.checkpoint.load(of))
        if current.attempt == 1:
            await current.checkpoint.save(state)
            raise ConnectionError("half way")

    async with app.worker():
        await (await work.start()).result(10)
    assert found == [None, state]
    assert type(found[1]) is type(state)


async def test_a_type_that_its_class_does_not_tell_is_given(app: App) -> None:
    @app.task(retry=again)
    async def work() -> int:
        places = await current.checkpoint.load(list[Place], default=[])
        if not places:
            await current.checkpoint.save([Place(1), Place(2)], list[Place])
            raise ConnectionError("half way")
        return sum(place.row for place in places)

    async with app.worker():
        assert await (await work.start()).result(10) == 3


async def test_a_thread_saves_and_loads_by_the_blocking_verbs(app: App) -> None:
    task = bodies.define(app, bodies.counts_on, executor="thread")
    async with app.worker():
        assert await (await task.start(3)).result(10) == 3


async def test_a_thread_with_a_loop_of_its_own_can_await_them(app: App) -> None:
    @app.task(retry=again)
    def work() -> int:
        return asyncio.run(bodies.counts_on_async(1))

    async with app.worker():
        assert await (await work.start()).result(10) == 1


@pytest.mark.parametrize("fn", [bodies.counts_on, bodies.counts_on_async])
async def test_a_process_saves_and_loads_through_its_parent(app: App, fn: Any) -> None:
    task = bodies.define(app, fn)
    async with app.worker():
        run = await task.start(3)
        assert await run.result(20) == 3
    assert [each.outcome for each in await run.attempts()] == ["failed", "failed", "completed"]


async def test_a_checkpoint_survives_the_death_of_the_process(app: App) -> None:
    task = bodies.define(app, bodies.dies_after_saving)
    async with app.worker():
        assert await (await task.start()).result(20) == 7


async def test_a_zombie_in_a_process_hears_that_its_claim_is_lost(app: App, tmp_path: Path, database: Database) -> None:
    gate = tmp_path / "gate"
    task = bodies.define(app, bodies.saves_too_late, retry=Retry(attempts=1))
    async with app.worker():
        run = await task.start(str(gate))
        await until(run.progress)
        # As if the worker had been frozen, and another had it now: this one does not know yet.
        async with database.transaction() as tx:
            await execute(tx, "update stepwell.runs set claim_id = $1", uuid4())
            gate.touch()
            await until(lambda: saves_waiting(database))

        async def told() -> str:
            return gate.read_text()

        assert await until(told) == "ClaimLost"


async def test_a_finished_run_started_again_begins_anew(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def work() -> int:
        row = await current.checkpoint.load(int, default=0)
        await current.checkpoint.save(row + 1)
        raise ValueError("no")

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(10):
            await asyncio.gather(run.result(), return_exceptions=True)
            second = await run.retry()
            await asyncio.gather(second.result(), return_exceptions=True)
    saved = await versions(app)
    # That of the first may have been forgotten by now: its run has ended.
    assert saved in ([1], [1, 1])


async def versions(app: App) -> list[int]:
    async with app._opening.database.transaction() as tx:
        return [row["version"] for row in await tx.connection.fetch("select version from stepwell.checkpoints")]


async def test_the_schema_is_that_of_the_class_or_of_the_call(app: App) -> None:
    class Newer(msgspec.Struct):
        row: int

        __schema__ = 2

    errors: list[BaseException] = []

    @app.task(retry=again)
    async def work() -> int:
        if current.attempt == 1:
            await current.checkpoint.save(Newer(1))
        for verb in (
            lambda: current.checkpoint.load(Spot),
            lambda: current.checkpoint.save(Spot(9)),
            lambda: current.checkpoint.load(Newer, schema=1),
        ):
            try:
                await verb()
            except NewerCheckpoint as error:
                errors.append(error)
        newer = await current.checkpoint.load(Newer)
        assert newer is not None
        assert await current.checkpoint.load(Spot, schema=2) == Spot(1)
        return newer.row

    async with app.worker():
        assert await (await work.start()).result(10) == 1
    assert len(errors) == 3


async def test_a_wrong_save_or_load_says_what_is_wrong(app: App) -> None:
    said: list[BaseException] = []

    @app.task(retry=Retry(attempts=1))
    async def work() -> None:
        for verb in (
            lambda: current.checkpoint.save(object()),
            lambda: current.checkpoint.save("x" * 3_000_000),
            lambda: current.checkpoint.save(1, schema=0),
            lambda: current.checkpoint.load(Place),
        ):
            try:
                await verb()
            except Exception as error:
                said.append(error)
                await current.checkpoint.save("no place")
        try:
            current.checkpoint.sync.load()
        except WrongUse as error:
            said.append(error)

    async with app.worker():
        await (await work.start()).result(10)
    assert [type(each) for each in said] == [NotEncodable, NotEncodable, InvalidSetting, NotDecodable, WrongUse]
    assert "limit" in str(said[1])


def test_there_is_no_checkpoint_outside_of_a_run() -> None:
    with pytest.raises(NotInARun):
        _ = current.checkpoint


async def test_a_save_outlasts_a_short_absence_of_the_database(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    database, away = app._opening.database, [True, True, True]
    rows = database.rows

    async def sometimes(name: str, /, **values: Any) -> Any:
        if name == "save_checkpoint" and away:
            away.pop()
            raise Unavailable("away")
        return await rows(name, **values)

    monkeypatch.setattr(database, "rows", sometimes)

    @app.task
    async def work() -> int:
        return await current.checkpoint.save(1)

    async with app.worker():
        assert await (await work.start()).result(10) == 1
    assert away == []


async def test_a_save_whose_answer_is_lost_is_saved_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[int, bool]] = []
    real = checkpoints.save

    async def save(*given: Any, **named: Any) -> tuple[int, bool]:
        answers.append(await real(*given, **named))
        if len(answers) % 2:
            raise Unavailable("the answer is lost")
        return answers[-1]

    monkeypatch.setattr(checkpoints, "save", save)

    @app.task
    async def work() -> list[int]:
        return [await current.checkpoint.save(n) for n in range(3)]

    async with app.worker():
        assert await (await work.start()).result(10) == [1, 2, 3]
    assert [saved for _, saved in answers] == [True, False] * 3


async def test_a_save_that_was_given_up_and_then_arrives_is_not_taken_for_the_next(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body went on without it: what it saves next is what counts."""
    monkeypatch.setattr("stepwell.concurrency.retry_unavailable.PATIENCE", 0.0)
    late: list[Any] = []
    real = checkpoints.save

    async def save(tx: Any, claim: Any, state: bytes, **named: Any) -> tuple[int, bool]:
        if state == b"1":
            late.append(lambda: real(tx, claim, state, **named))
            raise Unavailable("detained")
        if late:
            assert await late.pop()() == (1, True)
        return await real(tx, claim, state, **named)

    monkeypatch.setattr(checkpoints, "save", save)

    @app.task
    async def work() -> int | None:
        with pytest.raises(Unavailable):
            await current.checkpoint.save(1)
        await current.checkpoint.save(2)
        return await current.checkpoint.load(int)

    async with app.worker():
        assert await (await work.start()).result(10) == 2


async def test_saves_at_the_same_time_are_saved_one_after_the_other(app: App) -> None:
    @app.task
    async def work() -> list[int]:
        return sorted(await asyncio.gather(*(current.checkpoint.save(n) for n in range(5))))

    async with app.worker():
        assert await (await work.start()).result(10) == [1, 2, 3, 4, 5]
