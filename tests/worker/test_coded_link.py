"""A worker needs nothing of its link but values: each verb can be encoded, and bodies fare as on a direct link.

Beside these, whole files of tests run over a coded link: see `CODED` in tests/conftest.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stepwell import App, Retry, RunFailed, current
from stepwell.model.errors import ClaimLost, NewerCheckpoint, StepwellError, Unavailable
from stepwell.model.ids import new_run_id
from stepwell.model.outcome import Failed
from stepwell.model.run import Error, Reason
from stepwell.worker.ledger import Refused
from stepwell.worker.link import DataRefused, Link, Settlement
from tests.worker.coded_link import VERBS, WIRES, CodedLink, encoded, raised, rebuilt

SOON = 30
BESIDE = {"lease", "hear", "hears", "queues", "lend"}


def test_the_link_has_ten_verbs_and_what_stands_beside_them() -> None:
    public = {name for name, _ in inspect.getmembers(Link) if not name.startswith("_")}
    assert public == {*VERBS, *BESIDE}
    assert len(VERBS) <= 10


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_and_answer_of_a_verb_can_be_encoded(verb: str) -> None:
    wire = WIRES[verb]  # made of decoders, which refuse a type that is no value
    assert set(wire.arguments) == set(wire.signature.parameters) - {"self"}


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("gone"),
        ClaimLost(new_run_id(), 3),
        NewerCheckpoint(new_run_id(), 2, 1),
        DataRefused("UntranslatableCharacterError", "a null byte"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_verb_arrives_as_what_it_was(error: Any) -> None:
    arrived = rebuilt(encoded(raised(error)))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    if isinstance(error, StepwellError):
        assert isinstance(arrived, StepwellError)
        assert arrived.facts() == error.facts()


def test_an_outcome_in_place_of_a_refused_one_arrives_as_a_failure() -> None:
    error = Error("ValueError", "m", Reason.GAVE_UP)
    wire = encoded([Refused(error)])
    assert msgspec.msgpack.decode(wire, type=list[Settlement.__args__[1]]) == [Failed(error)]  # type: ignore[attr-defined]


async def test_a_body_that_asks_for_a_transaction_where_none_can_be_lent_is_told_what_to_do(
    app: App, through_coded_links: Callable[..., list[str]]
) -> None:
    through_coded_links(lends=False)

    @app.task(retry=Retry(attempts=1))
    async def write() -> None:
        async with current.tx():
            raise AssertionError("there is no connection to lend")

    async with app.worker():
        with pytest.raises(RunFailed, match=r"no database connection of its own: current\.tx\(\) needs one") as failed:
            await (await write.start()).result(SOON)
    assert failed.value.type == "stepwell.WrongUse"


async def test_tasks_and_workflows_run_over_a_link_that_only_bytes_go_through(
    app: App, through_coded_links: Callable[..., list[str]]
) -> None:
    calls = through_coded_links()

    @app.task
    async def double(x: int) -> int:
        current.progress("all", 1)
        await current.checkpoint.save(x)
        assert await current.checkpoint.load() == x
        return 2 * x

    @app.step
    async def stored(x: int) -> int:
        async with current.tx() as db:
            return int(await db.fetchval("select $1::int + 1", x))

    @app.workflow
    async def work(x: int) -> int:
        return await stored(await double(x))

    async with app.worker() as worker:
        assert isinstance(worker._link, CodedLink)
        assert [await (await work.start(x)).result(SOON) for x in range(3)] == [1, 3, 5]
    assert {"claim", "advance", "note", "save", "load"} <= set(calls)
