"""Workflows that try again for a limited time, by libraries that know nothing of workflows."""

from __future__ import annotations

import backoff
import stamina
import tenacity

from stepwell import App, StepFailed, workflow

app = App()
tried = 0
"""In this process: how often the step was."""


@app.step(name="giving_up.fetch")
async def fetch() -> str:
    global tried
    tried += 1
    raise ConnectionError("not today")


@app.workflow(name="giving_up.by_tenacity")
async def by_tenacity() -> str:
    stop, wait = tenacity.stop_after_delay(0.15), tenacity.wait_fixed(0.1)
    try:
        async for attempt in tenacity.AsyncRetrying(stop=stop, wait=wait, reraise=True):
            with attempt:
                await fetch()
    except StepFailed:
        return await _gave_up()
    return "never"


@app.workflow(name="giving_up.by_stamina")
async def by_stamina() -> str:
    retry = stamina.retry(on=StepFailed, attempts=None, timeout=0.15, wait_initial=0.1, wait_max=0.1, wait_jitter=0)
    try:
        await retry(fetch.__call__)()
    except StepFailed:
        return await _gave_up()
    return "never"


@app.workflow(name="giving_up.by_backoff")
async def by_backoff() -> str:
    retry = backoff.on_exception(backoff.constant, StepFailed, interval=0.1, jitter=None, max_time=0.15)
    try:
        await retry(fetch.__call__)()
    except StepFailed:
        return await _gave_up()
    return "never"


async def _gave_up() -> str:
    workflow.publish("gave up")
    await workflow.signal("end")
    return "gave up"


LIBRARIES = {"tenacity": by_tenacity, "stamina": by_stamina, "backoff": by_backoff}
