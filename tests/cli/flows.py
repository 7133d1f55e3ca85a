"""Workflows for the commands' tests."""

from __future__ import annotations

import asyncio

from stepwell import App, Retry, workflow

app = App()


@app.task(name="flows.reserve")
async def reserve(order: int) -> int:
    return order * 10


@app.task(name="flows.charge", retry=Retry(attempts=1))
async def charge(order: int) -> int:
    if order < 0:
        raise ValueError("no such order")
    return order * 100


@app.step(name="flows.label")
async def label(order: int) -> str:
    return f"order {order}"


@app.workflow(name="flows.checkout")
async def checkout(order: int) -> int:
    total = 0

    @workflow.update
    def add(more: int) -> int:
        nonlocal total
        total += more
        return total

    @add.validator
    def check(more: int) -> None:
        if more < 0:
            raise ValueError("only more")

    held, _ = await asyncio.gather(reserve(order), label(order))
    workflow.publish({"held": held})
    paid = await workflow.signal("pay", int)
    return held + paid + total + await charge(order)
