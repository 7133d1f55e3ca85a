"""The same workflow in code that does not fit the histories of the other."""

from __future__ import annotations

from stepwell import App, workflow

app = App()


@app.task(name="flows.hold")
async def hold(order: int) -> int:
    return order


@app.workflow(name="flows.checkout")
async def checkout(order: int) -> int:
    held = await hold(order)
    return held + await workflow.signal("pay", int)
