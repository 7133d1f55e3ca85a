"""The bodies that a worker can run: whether a claim is a task or a turn is decided by them, and nothing else."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from stepwell import App
from stepwell.model.ids import RunId, new_claim_id
from stepwell.model.pins import claim_name
from stepwell.model.run import Claim
from stepwell.worker.bodies import Bodies


@pytest.fixture
def bodies() -> Bodies:
    app = App("postgresql://nowhere/none")

    @app.task(name="shop.task")
    async def task() -> None: ...

    @app.workflow(name="shop.flow")
    async def flow() -> None: ...

    return Bodies(app.definitions.claimable, {})


def claim_of(name: str, **facts: Any) -> Claim:
    claim = Claim.bare(RunId(uuid4()), new_claim_id(), "default", 1)
    claim.name = name
    return claim


def test_a_claim_is_a_turn_if_its_definition_is_a_workflow_whatever_its_row_says(bodies: Bodies) -> None:
    claims = [claim_of(name) for name in ("shop.task", "shop.flow", "shop.gone")]
    assert bodies.mark_turns(claims) == [claims[1]]
    assert [claim.turn for claim in claims] == [False, True, False]


def test_a_turn_that_is_pinned_to_a_version_goes_by_the_name_of_its_workflow(bodies: Bodies) -> None:
    (version,) = {body.version for body in bodies.by_name.values() if body.kind == "workflow"}  # type: ignore[attr-defined]
    claim = claim_of(claim_name("shop.flow", version))
    assert bodies.mark_turns([claim]) == [claim]
    assert claim.name == "shop.flow"


def test_only_tasks_are_claimed_as_they_are_started(bodies: Bodies) -> None:
    assert bodies.tasks == {"shop.task"}
