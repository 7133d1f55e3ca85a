"""Workflows that together use every command, and write down every effect; and what each must come to, however often
its worker dies. `tag` tells one run's effects from another's."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

from stepwell import App, Fatal, Retry, RunCancelled, RunFailed, StepFailed, current, workflow

AGAIN = Retry(attempts=9, backoff="fixed", delay=0.01, jitter=0)
ONCE_MORE = Retry(attempts=2, backoff="fixed", delay=0.01, jitter=0)
LEASE = 5
FAN = 24


class Effects:
    """A file to which bodies append what they did. What was appended survives any death but the machine's."""

    def __init__(self, place: Path) -> None:
        self._file = place / "effects"

    def add(self, label: str) -> int:
        """Note it; how often it has happened now."""
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{label}\n".encode())
        finally:
            os.close(file)
        return self.all()[label]

    def all(self) -> Counter[str]:
        return Counter(self._file.read_text().splitlines() if self._file.exists() else [])


def make(dsn: str, place: Path) -> App:  # noqa: C901  # a list of definitions
    app = App(dsn, lease=LEASE, migrate=False)
    effects = Effects(place)

    # -- effects

    @app.step(name="step")
    async def step(label: str) -> str:
        effects.add(label)
        return label

    @app.step(name="blocking")
    def blocking(label: str) -> str:
        effects.add(label)
        return label

    @app.step(name="flaky", retry=ONCE_MORE)
    async def flaky(label: str) -> str:
        if effects.add(label) == 1:
            raise ConnectionError("once")
        return label

    @app.step(name="refuse")
    async def refuse(label: str) -> str:
        effects.add(label)
        raise ValueError(label)

    @app.step(name="written")
    async def written(label: str) -> str:
        async with current.tx() as connection:
            await connection.execute("insert into written (label) values ($1)", label)
        return label

    @app.task(name="task", retry=AGAIN)
    async def task(label: str) -> str:
        effects.add(label)
        return label

    @app.task(name="far", retry=AGAIN, queue="far")
    async def far(label: str) -> str:
        effects.add(label)
        return label

    @app.task(name="failing", retry=AGAIN)
    async def failing(label: str) -> str:
        effects.add(label)
        raise Fatal(label)

    @app.task(name="for_ever", retry=AGAIN)
    async def for_ever(label: str) -> str:
        effects.add(label)
        await asyncio.Event().wait()
        return label

    # -- workflows

    @app.workflow(name="steps")
    async def steps(tag: str) -> list[str]:
        did = [await step(f"{tag}/1"), await blocking(f"{tag}/2"), await flaky(f"{tag}/3")]
        try:
            await refuse(f"{tag}/4")
        except StepFailed as error:
            did.append(error.message)
        return did

    @app.workflow(name="tasks")
    async def tasks(tag: str) -> list[str]:
        did = [await task(f"{tag}/1"), await far(f"{tag}/2"), await task.options(delay=0.02)(f"{tag}/3")]
        try:
            await failing(f"{tag}/4")
        except RunFailed as error:
            did.append(error.message)
        return did

    @app.workflow(name="own_tx")
    async def own_tx(tag: str) -> list[str]:
        return [await written(f"{tag}/1"), await task(f"{tag}/2"), await written(f"{tag}/3")]

    @app.workflow(name="nested")
    async def nested(tag: str) -> list[str]:
        inner = asyncio.gather(task(f"{tag}/1"), step(f"{tag}/2"), child(f"{tag}/3"))
        first, (second, third, fourth) = await asyncio.gather(step(f"{tag}/0"), inner)
        async with asyncio.TaskGroup() as group:
            fifth = group.create_task(task(f"{tag}/4"))
            sixth = group.create_task(blocking(f"{tag}/5"))
        return [first, second, third, fourth, fifth.result(), sixth.result()]

    @app.workflow(name="child")
    async def child(tag: str) -> str:
        await step(f"{tag}/a")
        return await task(f"{tag}/b")

    @app.workflow(name="started")
    async def started(tag: str) -> list[str]:
        one, other = await child.start(f"{tag}/1"), await task.start(f"{tag}/2")
        did = await step(f"{tag}/3")
        return [await other.result(), did, await one.result()]

    @app.workflow(name="timers")
    async def timers(tag: str) -> list[str]:
        await asyncio.sleep(0.05)
        did = [await step(f"{tag}/1")]
        try:
            async with asyncio.timeout(0.05):
                await for_ever(f"{tag}/2")
        except TimeoutError:
            did.append("late")
        done, left = await asyncio.wait(
            {asyncio.create_task(asyncio.sleep(0.02)), asyncio.create_task(asyncio.sleep(3600))},
            return_when=asyncio.FIRST_COMPLETED,
        )
        for each in left:
            each.cancel()
        return [*did, str(len(done)), await task(f"{tag}/3")]

    @app.workflow(name="signals")
    async def signals(tag: str) -> list[str]:
        came = [await workflow.signal("n", str), await step(f"{tag}/1"), await workflow.signal("n", str)]
        try:
            await workflow.signal("never", str, timeout=0.05)
        except TimeoutError:
            came.append("late")
        return [*came, await task(f"{tag}/2"), await workflow.signal("n", str, timeout=60)]

    @app.workflow(name="marks")
    async def marks(tag: str) -> list[str]:
        workflow.publish({"at": 1})
        did = [await step(f"{tag}/1") if workflow.patched("new") else "old"]
        did += [str(workflow.uuid() == workflow.uuid()), str(len(str(workflow.random.random())) > 0)]
        workflow.publish({"at": 2})
        return [*did, await task(f"{tag}/2")]

    @app.workflow(name="updates")
    async def updates(tag: str) -> list[str]:
        did: list[str] = []

        @workflow.update
        async def add(what: str) -> int:
            did.append(await step(f"{tag}/{what}"))
            return len(did)

        @add.validator
        def short(what: str) -> None:
            if len(what) > 1:
                raise ValueError("too long")

        await workflow.signal("end")
        return [*sorted(did), await task(f"{tag}/3")]

    @app.workflow(name="anew")
    async def anew(tag: str, did: list[str]) -> list[str]:
        n = len(did)
        did = [*did, await (step if n == 2 else task)(f"{tag}/{n}"), await workflow.signal("n", str)]
        if n < 4:
            workflow.continue_as_new(tag, did)
        return did

    @app.workflow(name="saga")
    async def saga(tag: str) -> None:
        for n in range(2):
            await task(f"{tag}/{n}")
            workflow.on_rollback(task, f"{tag}/undo {n}")
            workflow.on_rollback(step, f"{tag}/note {n}")
        await refuse(f"{tag}/2")

    @app.workflow(name="cancelled")
    async def cancelled(tag: str) -> None:
        try:
            workflow.on_rollback(step, f"{tag}/rolled back")
            await asyncio.gather(for_ever(f"{tag}/1"), waiting(f"{tag}/2"))
        finally:
            await task(f"{tag}/cleaned")

    @app.workflow(name="waiting")
    async def waiting(tag: str) -> None:
        try:
            await for_ever(f"{tag}/a")
        finally:
            await step(f"{tag}/cleaned")

    @app.workflow(name="refusing")
    async def refusing(tag: str) -> list[str]:
        try:
            await for_ever(f"{tag}/1")
        except asyncio.CancelledError:
            return [await task(f"{tag}/2"), await step(f"{tag}/3")]
        return []

    @app.workflow(name="late")
    async def late(tag: str) -> None:
        await step(f"{tag}/1")
        await asyncio.gather(for_ever(f"{tag}/2"), waiting(f"{tag}/3"))

    @app.workflow(name="family")
    async def family(tag: str) -> list[str]:
        ends = await asyncio.gather(saga(f"{tag}/s"), child(f"{tag}/c"), return_exceptions=True)
        return [type(end).__name__ if isinstance(end, BaseException) else end for end in ends]

    @app.workflow(name="fan")
    async def fan(tag: str) -> list[str]:
        workflow.publish({"at": 0})
        did = await asyncio.gather(*(task(f"{tag}/{n}") for n in range(FAN)), step(f"{tag}/step"))
        workflow.publish({"at": len(did)})
        return did

    return app


def expected(name: str, tag: str) -> object:
    """What a run of this workflow comes to: its result, or the error of `run.result()`."""

    def of(*labels: object) -> list[str]:
        return [f"{tag}/{label}" if isinstance(label, int) else str(label) for label in labels]

    return {
        "steps": of(1, 2, 3, 4),
        "tasks": of(1, 2, 3, 4),
        "own_tx": of(1, 2, 3),
        "nested": of(0, 1, 2, f"{tag}/3/b", 4, 5),
        "started": of(2, 3, f"{tag}/1/b"),
        "timers": of(1, "late", "1", 3),
        "signals": of("0", 1, "1", "late", 2, "2"),
        "marks": of(1, "False", "True", 2),
        "updates": of(f"{tag}/a", f"{tag}/b", 3),
        "anew": of(0, "0", 2, "1", 4, "2"),
        "saga": RunFailed,
        "cancelled": RunCancelled,
        "refusing": of(2, 3),
        "late": RunFailed,
        "family": of("RunFailed", f"{tag}/c/b"),
        "fan": of(*range(FAN), f"{tag}/step"),
    }[name]


def surely(name: str, tag: str) -> list[str]:
    """Effects that must have happened, beside those that the result tells."""
    labels = {
        "saga": ["0", "1", "2", "undo 0", "undo 1", "note 0", "note 1"],
        "cancelled": ["rolled back", "cleaned"],
        "late": ["1"],
        "nested": ["3/a"],
        "started": ["1/a"],
        "family": ["s/0", "s/1", "s/2", "s/undo 0", "s/undo 1", "s/note 0", "s/note 1", "c/a"],
    }.get(name, [])
    return [f"{tag}/{label}" for label in labels]


NAMES = [
    "steps", "tasks", "own_tx", "nested", "started", "timers", "signals", "marks", "updates", "anew", "saga",
    "cancelled", "refusing", "late", "family", "fan",
]  # fmt: skip
