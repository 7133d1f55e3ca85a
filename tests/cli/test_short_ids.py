"""Ids on the command line may be shortened to a beginning that no other id has."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest

from stepwell import App, Run
from tests.factory import execute


async def two(client: App) -> tuple[Run[Any], Run[Any]]:
    first, second = await client.definition("shop.add").start_many([(1,), (2,)])
    return first, second


def shared_by(*runs: Run[Any]) -> str:
    """The beginning that all their ids have."""
    places = zip(*(str(run.id) for run in runs), strict=True)
    return "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, places))


def unique(one: Run[Any], other: Run[Any]) -> str:
    """The shortest beginning of one's id that the other's does not have."""
    return str(one.id)[: len(shared_by(one, other)) + 1]


@pytest.mark.parametrize(
    "command", ["show", "explain", "logs", "history", "pause", "resume", "signal pay", "cancel", "update add", "retry"]
)
async def test_every_command_takes_the_beginning_of_an_id(stepwell, client, command):
    run, other = await two(client)
    verb, *more = command.split()
    if command == "resume":
        await run.pause()
    if command == "retry":
        await run.cancel()
    said = await stepwell(verb, unique(run, other), *more)
    if verb in ("signal", "update"):  # it was found: only workflows take these
        assert f"shop.add {run.id} is a task" in said.err
    else:
        assert said.code == 0, said.err


async def test_fork_and_replay_take_the_beginning_of_an_id(stepwell, client):
    run, other = await two(client)
    assert str(run.id) in (await stepwell("fork", unique(run, other), "--at", 0)).err
    assert f"shop.add {run.id} is a task" in (await stepwell("replay", unique(run, other), "shop:app")).err


@pytest.mark.parametrize("place", ["runs", "finished_runs", "kept_runs"])
async def test_a_shortened_id_is_found_wherever_the_run_is(stepwell, client, database, place):
    run, other = await two(client)
    if place != "runs":
        await run.cancel()
    if place == "kept_runs":
        async with database.transaction() as tx:
            await execute(
                tx,
                "with gone as (delete from stepwell.finished_runs returning *) "
                "insert into stepwell.kept_runs select * from gone",
            )
    for text in (unique(run, other), unique(run, other).replace("-", ""), unique(run, other).upper() + "…"):
        assert (await stepwell("show", text, "--json")).json["id"] == str(run.id)


async def test_an_ambiguous_beginning_lists_five_and_is_wrong_usage(stepwell, client):
    runs = await client.definition("shop.add").start_many([(n,) for n in range(7)])
    shared = shared_by(*runs)
    said = await stepwell("show", shared)
    assert said.code == 2
    head, *listed, rest = said.err.splitlines()
    assert f"'{shared}' is the beginning of more than one id" in head
    assert [line.split()[0] for line in listed] == [str(run.id) for run in reversed(runs[2:])]
    assert all(line.split()[1:3] == ["shop.add", "pending"] for line in listed)
    assert "and more" in rest
    both = await stepwell("cancel", shared, runs[0].id)
    assert (both.code, (await runs[0].info()).state) == (2, "cancelled")


async def test_a_beginning_that_no_id_has_is_not_found(stepwell, client):
    await two(client)
    for text in ("00000000", "00000000-0000-0000", "ffffffff", "0199"):
        said = await stepwell("show", text)
        assert said.code == 3, said.err
        assert repr(text) in said.err


async def test_a_key_goes_before_the_beginning_of_an_id(stepwell, client):
    run, other = await two(client)
    looks_like_it = unique(run, other).replace("-", "")
    keyed = await client.definition("shop.add").options(key=looks_like_it).start(3)
    assert (await stepwell("show", looks_like_it, "--json")).json["id"] == str(keyed.id)


async def test_a_list_goes_on_behind_a_shortened_id(stepwell, client):
    first, second = await two(client)
    page = (await stepwell("runs", "--after", unique(second, first), "--json")).json
    assert [each["id"] for each in page["items"]] == [str(first.id)]
