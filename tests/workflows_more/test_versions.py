"""Versions: a run remembers the code it began with, workers say theirs, and a pinned run waits for its own."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell import App, InvalidSetting, Run, RunFailed, workflow
from stepwell.client.client import Client
from stepwell.definitions.workflow import version_of
from stepwell.model.run import Filter
from tests.waiting_for import until


def two_versions(dsn: str) -> tuple[App, App, Any, Any]:
    """Two apps with the same workflow, in other code."""
    old, new = App(dsn, lease=5), App(dsn, lease=5)

    @old.workflow(name="shop.checkout")
    async def checkout() -> str:
        await workflow.signal("go", int)
        return "old"

    @new.workflow(name="shop.checkout")
    async def checkout_anew() -> str:
        await workflow.signal("go", int)
        return "new"

    return old, new, checkout, checkout_anew


def right_and_wrong(dsn: str) -> tuple[App, App, Any]:
    """An app, one whose code does not fit what the first has recorded, and the workflow of the first."""
    right, wrong = App(dsn, lease=5), App(dsn, lease=5)

    @right.workflow(name="shop.checkout")
    async def checkout() -> int:
        workflow.publish(1)
        return await workflow.signal("go", int)

    @wrong.workflow(name="shop.checkout")
    async def changed() -> int:
        return await workflow.signal("go", int)

    return right, wrong, checkout


async def until_waiting(run: Run[Any]) -> None:
    async def is_waiting() -> bool:
        return (await run.info()).state == "waiting"

    await until(is_waiting, within=15)


async def test_a_run_remembers_the_version_it_began_with(dsn: str) -> None:
    old, new, checkout, changed = two_versions(dsn)
    assert checkout.version != changed.version
    async with old:
        async with old.worker():
            run = await checkout.start()
            await until_waiting(run)
        assert (await run.info()).version == checkout.version
        async with new.worker():
            await run.signal("go", 1)
            assert await run.result(timeout=20) == "new"  # it is not pinned, and the code fits
        info = await run.info()
        assert (info.version, info.state) == (checkout.version, "completed")
        assert (await run.history())[0].data["version"] == checkout.version


async def test_comments_and_layout_make_no_other_version_and_other_code_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "version_one": "async def same(a: int) -> int:\n    return a\n",
        "version_two": "# above\n\nasync def same(\n    a: int\n) -> int:\n    # a comment\n    return (a)\n",
        "version_three": "async def same(a: int) -> int:\n    return -a\n",
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    one, two, three = (version_of(import_module(name).same) for name in texts)
    assert one == two
    assert one != three
    assert re.fullmatch("[0-9a-f]{12}", one)


async def test_workers_say_their_versions(dsn: str) -> None:
    old, _, checkout, _ = two_versions(dsn)

    @old.task(name="shop.pack")
    async def pack() -> None: ...

    async with old, old.worker():
        (worker,) = await until(old.workers)
        assert worker.versions == {"shop.checkout": checkout.version}
        assert worker.names == ["shop.checkout", "shop.pack"]


async def test_a_pinned_run_is_taken_by_its_own_version_alone_and_shown_by_its_plain_name(dsn: str) -> None:
    old, new, checkout, changed = two_versions(dsn)
    async with old, new:
        async with new.worker():
            run = await checkout.options(pinned=True, key="pinned").start()
            other = await changed.start()
            await until_waiting(other)  # the worker is there, and takes what it may
            await run.signal("go", 1)
            assert (await run.info()).state == "pending"
            async with old.worker():
                assert await run.result(timeout=20) == "old"
            await other.signal("go", 1)
            assert await other.result(timeout=20) == "new"
        info = await run.info()
        assert (info.name, info.version) == ("shop.checkout", checkout.version)
        page = await old.runs(name="shop.checkout")
        assert {each.id for each in page.items} == {run.id, other.id}
        client = old.door
        assert isinstance(client, Client)
        named = Filter(name="shop.checkout")
        found = await client.many.matching(named, finished=True, limit=9, after=type(run.id)(int=0))
        assert set(found) == {run.id, other.id}


async def test_it_knows_itself_by_its_plain_name_and_so_do_its_errors(dsn: str) -> None:
    app = App(dsn, lease=5)

    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        raise ValueError(workflow.info().name)

    async with app, app.worker():
        run = await checkout.options(pinned=True).start()
        with pytest.raises(RunFailed) as failure:
            await run.result(timeout=20)
    assert failure.value.name == "shop.checkout"
    assert failure.value.message == "shop.checkout"


async def test_a_pinned_child_is_recorded_by_its_plain_name(dsn: str) -> None:
    app = App(dsn, lease=5)

    @app.workflow(name="shop.child")
    async def child() -> int:
        return 7

    @app.workflow(name="shop.parent")
    async def parent() -> int:
        return await child.options(pinned=True)()

    async with app, app.worker():
        run = await parent.start()
        assert await run.result(timeout=20) == 7
        started = next(event for event in await run.history() if event.type == "ChildStarted")
        assert started.data["name"] == "shop.child"


async def test_options_may_unpin_again_and_a_retry_is_not_pinned(dsn: str) -> None:
    old, new, checkout, changed = two_versions(dsn)
    async with old, new, new.worker():
        run = await checkout.options(pinned=True).options(pinned=False).start()
        await run.signal("go", 1)
        assert await run.result(timeout=20) == "new"
        pinned = await changed.options(pinned=True).start()
        await until_waiting(pinned)
        fork = await pinned.fork(at=1)
        connection = await asyncpg.connect(dsn)
        names = dict(await connection.fetch("select id, name from stepwell.runs"))
        await connection.close()
        assert names[pinned.id] == f"shop.checkout@{changed.version}"
        assert names[fork.id] == "shop.checkout"


async def test_who_stopped_at_older_code_goes_on_though_the_newer_was_there_before(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.services.unblock.LOOK", 0.2)
    right, wrong, checkout = right_and_wrong(dsn)
    async with right, wrong:
        async with right.worker():
            run = await checkout.start()
            await until_waiting(run)
        async with wrong.worker():
            await run.signal("go", 3)

            async def is_blocked() -> bool:
                return "blocked" in {cause.code for cause in (await run.explain()).causes}

            await until(is_blocked, within=15)
            async with right.worker():
                assert await run.result(timeout=20) == 3


async def test_what_stopped_at_other_code_is_taken_by_the_worker_that_brings_the_right_one(dsn: str) -> None:
    """Though one with the other code is still there, and idle: in the middle of a deploy."""
    right, wrong, checkout = right_and_wrong(dsn)
    async with right, wrong:
        async with right.worker():
            runs = await checkout.start_many([()] * 8)
            for run in runs:
                await until_waiting(run)
        async with wrong.worker():
            for run in runs:
                await run.signal("go", 3)

            async def are_blocked() -> bool:
                return all([[cause.code for cause in (await run.explain()).causes] == ["blocked"] for run in runs])

            await until(are_blocked, within=15)
            async with right.worker():
                assert [await run.result(timeout=20) for run in runs] == [3] * 8


async def test_a_worker_that_starts_lets_those_go_on_that_stopped_at_the_same_version(dsn: str) -> None:
    """Its own code is the same; what it calls was mended."""
    app = App(dsn, lease=5)
    published = 1

    async def show() -> None:
        for number in range(published):
            workflow.publish(number)

    @app.workflow(name="shop.checkout")
    async def checkout() -> int:
        await show()
        return await workflow.signal("go", int)

    async with app:
        for options in ({}, {"pinned": True}):
            published = 1
            async with app.worker():
                run = await checkout.options(**options).start()
                await until_waiting(run)
            published = 2
            async with app.worker():
                await run.signal("go", 3)

                async def is_blocked(run: Run[Any] = run) -> bool:
                    return "blocked" in {cause.code for cause in (await run.explain()).causes}

                await until(is_blocked, within=15)
            published = 1
            async with app.worker():
                assert await run.result(timeout=20) == 3


def test_a_workflow_cannot_be_called_like_a_pinned_run() -> None:
    app = App()

    async def checkout() -> None: ...

    with pytest.raises(InvalidSetting, match="how pinned runs are named"):
        app.workflow(name="shop.checkout@0123456789ab")(checkout)
