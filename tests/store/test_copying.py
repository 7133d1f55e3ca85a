"""What is copied into the table is what would have been inserted."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App
from stepwell.client import client
from stepwell.engine import runs
from stepwell.model.ids import new_run_id
from stepwell.model.start import Start, Terms
from stepwell.store import copying
from stepwell.store.pool import Transaction

TERMS = [
    Terms("plain"),
    Terms("nämé 名前", "queue 行列", 1),
    Terms("t", priority=100, retry=b'{"limit": 3}', tags=b'{"tenant": "\xc3\xbc", "n": [1, null]}'),
    Terms("t", timeout=timedelta(days=40_000, hours=25, microseconds=1)),
    Terms("t", timeout=timedelta(microseconds=1), parent_id=uuid.uuid4(), root_id=uuid.uuid4()),
]
INPUTS = [b"{}", b'{"n": 1.5, "text": "\xf0\x9f\x90\x9f"}', b'{"long": "%b"}' % (b"x" * 2 * copying.CHUNK)]


async def rows(tx: Transaction, starts: list[Start]) -> list[dict[str, Any]]:
    found = await tx.connection.fetch(
        "select * from stepwell.runs where id = any($1) order by id", [each.id for each in starts]
    )
    return [{name: value for name, value in row.items() if name not in ("id", "created_at")} for row in found]


async def test_a_copied_row_is_the_row_that_an_insert_makes(tx: Transaction) -> None:
    copied = [Start(new_run_id(), input, terms) for terms in TERMS for input in INPUTS]
    inserted = [Start(new_run_id(), each.input, each.terms) for each in copied]
    await runs.start_plain(tx, copied)
    await runs.start(tx, inserted)
    assert await rows(tx, copied) == await rows(tx, inserted)
    assert len(await rows(tx, copied)) == len(TERMS) * len(INPUTS)


async def test_nothing_copied_is_nothing_in_the_table(tx: Transaction) -> None:
    await runs.start_plain(tx, [])
    assert await tx.connection.fetch("select from stepwell.runs") == []


@pytest.mark.parametrize(("rows", "bytes"), [(70, 10**9), (10**9, 5_000)])
async def test_a_start_of_many_is_all_there_whatever_a_copy_may_hold(
    app: App, monkeypatch: pytest.MonkeyPatch, rows: int, bytes: int
) -> None:
    async def note(text: str) -> None: ...

    monkeypatch.setattr(client, "COPY", rows)
    monkeypatch.setattr(client, "COPY_BYTES", bytes)
    started = await app.task(note).start_many((f"{n:050}",) for n in range(client.BULK))
    page = await app.runs(limit=client.BULK)
    assert {each.id for each in page.items} == {each.id for each in started}
    assert len(page.items) == client.BULK
