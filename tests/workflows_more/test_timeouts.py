"""A workflow's timeout ends it in time, and not at somebody's next look."""

from __future__ import annotations

import time

import pytest

from stepwell import App, RunFailed, workflow


@pytest.mark.usefixtures("only_by_word")
async def test_a_timeout_ends_a_workflow_that_waits_soon_after_it(app: App) -> None:
    @app.workflow(timeout=0.5)
    async def timed() -> None:
        await workflow.signal("never", int)

    async with app.worker():
        for _ in range(4):
            began = time.monotonic()
            run = await timed.start()
            with pytest.raises(RunFailed):
                await run.result(timeout=30)
            assert time.monotonic() - began > 0.4
