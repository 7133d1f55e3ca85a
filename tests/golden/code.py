"""The workflows of the golden histories. A function here is never changed: its histories are what users' are.

To try something new, add a function, and make its history (README.md).
"""

from __future__ import annotations

import asyncio

from stepwell import App, Retry, RunFailed, UpdateFailed, workflow
from stepwell.model.errors import StepFailed

app = App()
ONCE = Retry(attempts=1)


@app.task(name="golden.add", retry=ONCE)
async def add(a: int, b: int) -> int:
    return a + b


@app.task(name="golden.fail", retry=ONCE)
async def fail(why: str) -> None:
    raise ValueError(why)


@app.task(name="golden.forever", queue="nobody-serves-it")
async def forever() -> None: ...


@app.step(name="golden.double")
async def double(n: int) -> int:
    return 2 * n


@app.step(name="golden.fail_step")
async def fail_step() -> None:
    raise LookupError("nothing there")


@app.workflow(name="golden.tasks_and_steps")
async def tasks_and_steps(n: int) -> list[int]:
    first = await add(n, 1)
    second = await double(first)
    both = await asyncio.gather(add(second, 1), double(second), add(second, 2))
    try:
        await fail("as it should")
    except RunFailed:
        both.append(await add(0, 0))
    try:
        await fail_step()
    except StepFailed:
        both.append(await double(0))
    return both


@app.workflow(name="golden.time")
async def time(seconds: float) -> str:
    await asyncio.sleep(seconds)
    try:
        async with asyncio.timeout(seconds):
            await forever()
    except TimeoutError:
        await asyncio.wait_for(add(1, 1), timeout=60)
    try:
        await workflow.signal("never", int, timeout=seconds)
    except TimeoutError:
        return "in time"
    return "too late"


@app.workflow(name="golden.signals")
async def signals() -> list[str]:
    heard = [await workflow.signal("word", str) for _ in range(2)]
    workflow.publish({"heard": heard})
    done, left = await asyncio.wait(
        [asyncio.create_task(workflow.signal(name, str)) for name in ("left", "right")],
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in left:
        task.cancel()
    heard += [task.result() for task in done]
    return heard


@app.workflow(name="golden.child")
async def child(n: int) -> int:
    if n < 0:
        raise ValueError("below")
    return await add(n, n)


@app.workflow(name="golden.endless_child")
async def endless_child() -> None:
    await workflow.signal("never", int)


@app.workflow(name="golden.children")
async def children() -> list[int]:
    got = list(await asyncio.gather(child(1), child(2)))
    try:
        await child(-1)
    except RunFailed:
        got.append(0)
    endless = asyncio.create_task(endless_child())
    await asyncio.sleep(0)
    got.append(await add(1, 1))
    endless.cancel()
    await asyncio.gather(endless, return_exceptions=True)
    return got


@app.workflow(name="golden.patched")
async def patched() -> int:
    if workflow.patched("twice"):
        return await double(await add(1, 1))
    return await add(1, 1)


@app.workflow(name="golden.updates")
async def updates() -> int:
    total = 0

    @workflow.update
    async def more(n: int) -> int:
        nonlocal total
        total += await add(n, 0)
        return total

    @more.validator
    def check(n: int) -> None:
        if n < 0:
            raise ValueError("only more")

    @workflow.update
    def broken() -> None:
        raise UpdateFailed(workflow.info().id, "broken", "a", "b")

    await workflow.signal("done", bool)
    return total


@app.workflow(name="golden.cancelled")
async def cancelled() -> None:
    workflow.publish("waiting")
    try:
        await asyncio.sleep(3600)
    finally:
        await add(0, 1)


@app.workflow(name="golden.rolled_back")
async def rolled_back() -> None:
    await add(1, 2)
    workflow.on_rollback(add, 2, 1)
    await double(1)
    workflow.on_rollback(double, 1)
    await fail("undo it all")


@app.workflow(name="golden.continued")
async def continued(left: int) -> str:
    word = await workflow.signal("word", str)
    if left:
        workflow.continue_as_new(left - 1)
    return word


@app.workflow(name="golden.asyncio")
async def plain_asyncio() -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    gate, lock, room = asyncio.Event(), asyncio.Lock(), asyncio.Semaphore(2)
    found: list[int] = []

    async def produce() -> None:
        for n in range(4):
            await queue.put(await double(n))
        gate.set()

    async def consume() -> None:
        for _ in range(4):
            n = await queue.get()
            async with lock:
                found.append(n)

    async def limited(n: int) -> int:
        async with room:
            return await add(n, 10)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())
    await gate.wait()
    for each in asyncio.as_completed([limited(n) for n in range(4)]):
        found.append(await each)
    found.append(await asyncio.shield(add(1, 1)))
    return sorted(found)


@app.workflow(name="golden.chance")
async def chance() -> list[str]:
    thrown = workflow.random.randrange(100)
    await (add(thrown, 0) if thrown < 50 else double(thrown))
    return [str(workflow.uuid()), workflow.now().isoformat(), str(workflow.random.random())]


@app.workflow(name="golden.open")
async def still_open() -> None:
    workflow.publish({"at": "the gate"})
    await asyncio.gather(forever(), workflow.signal("never", int, timeout=10**7), asyncio.sleep(10**7))


@app.workflow(name="golden.timed_out", timeout=0.5)
async def timed_out() -> None:
    await workflow.signal("never", int)
