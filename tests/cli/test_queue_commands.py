from __future__ import annotations

import getpass
import socket

import pytest


async def test_a_queue_is_paused_by_someone_and_resumed(stepwell, client):
    said = await stepwell("queue", "pause", "mail", "--json")
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert (said.code, said.json["paused_by"]) == (0, me)
    info = await client.queue("mail").info()
    assert info.paused_by == me
    assert f"by {me}" in (await stepwell("queues")).out
    assert (await stepwell("queue", "resume", "mail")).code == 0
    assert (await client.queue("mail").info()).paused_at is None


async def test_who_paused_first_is_kept(stepwell, client):
    await client.queue("mail").pause(by="ann@desk")
    assert "by ann@desk" in (await stepwell("queue", "pause", "mail")).out


async def test_limits_are_set_and_lifted_one_by_one(stepwell):
    said = await stepwell("queue", "set", "mail", "--concurrency", 5, "--rate", "100/min", "--per-key", 2, "--json")
    assert said.code == 0
    told = said.json
    assert (told["concurrency"], told["rate"], told["per_key"]) == (5, "100/min", 2)
    told = (await stepwell("queue", "set", "mail", "--rate", "none", "--json")).json
    assert (told["concurrency"], told["rate"], told["per_key"]) == (5, None, 2)
    told = (await stepwell("queue", "set", "mail", "--concurrency", "none", "--per-key", "none", "--json")).json
    assert (told["concurrency"], told["per_key"]) == (None, None)


async def test_queues_are_listed_with_what_is_in_them(stepwell, client):
    await client.definition("shop.add").options(queue="mail").start_many([(n,) for n in range(3)])
    await client.queue("sums").set(concurrency=2, keep="forever")
    found = {each["name"]: each for each in (await stepwell("queues", "--json")).json}
    assert (found["mail"]["pending"], found["sums"]["concurrency"]) == (3, 2)
    assert (found["mail"]["keep"], found["sums"]["keep"]) == (None, "forever")
    said = await stepwell("queues")
    assert said.out.startswith("QUEUE")
    assert "mail" in said.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "mail"),
        ("set", "mail", "--concurrency", "0"),
        ("set", "mail", "--concurrency", "many"),
        ("set", "mail", "--per-key", "-1"),
        ("set", "mail", "--rate", "often"),
        ("pause",),
        ("pause", ""),
        ("no-such-verb", "mail"),
    ],
)
async def test_wrong_usage_is_said(stepwell, arguments):
    said = await stepwell("queue", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err
