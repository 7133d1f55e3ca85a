"""The states of a turn: which follows upon which, and what becomes of its write and its end on the way."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from stepwell.model.ids import ClaimId, RunId
from stepwell.model.run import Claim
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced
from stepwell.worker.turns.host import WritePage
from stepwell.worker.turns.turn_state import MOVES, IllegalMove, Lifecycle, TurnState

WROTE = Advanced(State.WAITING, 0), frozenset[RunId]()


def page() -> WritePage:
    claim = Claim.bare(RunId(uuid4()), ClaimId(UUID(int=0)), "default", 1)
    return WritePage(Advance(claim, recorded=3, seen=1))


def reached(state: TurnState) -> Lifecycle:
    """A turn that came to this state as turns do."""
    life = Lifecycle((0, 0))
    if state in (TurnState.WRITING, TurnState.FAILING):
        life.send(page())
    if state is TurnState.CLOSING:
        life.send(page(), last=True)
    if state is TurnState.FAILING:
        life.fail(KeyError("k"))
    if state is TurnState.ENDED:
        life.leave()
    assert life.state is state
    return life


@pytest.mark.parametrize(("was", "to"), list(product(TurnState, TurnState)))
async def test_a_turn_moves_as_its_table_says_and_in_no_other_way(was: TurnState, to: TurnState) -> None:
    life = reached(was)
    if to in MOVES[was]:
        life.move(to)
        assert life.state is to
    else:
        with pytest.raises(IllegalMove, match=f"a turn that is {was} cannot become {to}"):
            life.move(to)
        assert life.state is was


@pytest.mark.parametrize("state", [each for each in TurnState if each is not TurnState.RUNNING])
@pytest.mark.parametrize("last", [False, True])
async def test_no_second_write_leaves_while_one_is_on_its_way_or_after_the_last(state: TurnState, last: bool) -> None:
    with pytest.raises(IllegalMove):
        reached(state).send(page(), last=last)


@pytest.mark.parametrize("state", list(TurnState))
async def test_code_is_told_something_only_while_its_turn_is_open(state: TurnState) -> None:
    assert reached(state).is_open is (state in (TurnState.RUNNING, TurnState.WRITING))


async def test_a_turn_goes_on_after_a_write_and_ends_after_the_last() -> None:
    life = reached(TurnState.WRITING)
    assert life.answer(WROTE) is not None
    assert (life.state, life.written, life.end.done()) == (TurnState.RUNNING, (3, 1), False)
    life.send(page(), last=True)
    assert life.answer(WROTE) is None
    assert (life.state, await life.end) == (TurnState.ENDED, WROTE[0])


@pytest.mark.parametrize("state", [TurnState.RUNNING, TurnState.WRITING, TurnState.CLOSING])
async def test_an_error_ends_a_turn_once_its_write_is_answered(state: TurnState) -> None:
    life = reached(state)
    life.fail(KeyError("first"))
    life.fail(KeyError("second"))
    if state is not TurnState.RUNNING:
        assert (life.state, life.end.done()) == (TurnState.FAILING, False)
        assert life.answer(WROTE) is None
    assert life.state is TurnState.ENDED
    with pytest.raises(KeyError, match="first"):
        await life.end


@pytest.mark.parametrize("state", [TurnState.WRITING, TurnState.CLOSING])
async def test_a_write_that_is_refused_ends_its_turn(state: TurnState) -> None:
    life = reached(state)
    assert life.answer(KeyError("refused")) is None
    assert life.state is TurnState.ENDED
    with pytest.raises(KeyError, match="refused"):
        await life.end


@pytest.mark.parametrize("answer", [WROTE, KeyError("refused")])
async def test_the_answer_to_a_write_of_a_turn_that_was_ended_from_outside_changes_nothing(answer: Any) -> None:
    life = reached(TurnState.WRITING)
    life.end.cancel()
    life.leave()
    assert life.answer(answer) is None
    assert life.state is TurnState.ENDED
