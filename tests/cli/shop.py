"""The app that the commands' tests run: bodies that last exactly as long as a test wants."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from stepwell import App

app = App()


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def say(words: str) -> None:
    logging.getLogger("shop").info(words)


@app.task
async def until_file(path: str) -> str:
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # what a test in another process can make
        await asyncio.sleep(0.02)
    return "the file is there"


@app.task
async def hang() -> None:
    await asyncio.Event().wait()


@app.task
def hang_in_thread() -> None:
    time.sleep(600)


@app.task
async def block_the_loop() -> None:
    time.sleep(600)  # the mistake is the point
