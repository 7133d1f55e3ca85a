"""Where a worker claims next: looks from the front, and going on behind the last run that was taken."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest

from stepwell.model.ids import ClaimId, RunId
from stepwell.model.run import Claim, Claimed, Place
from stepwell.worker.claiming.frontier import CHEAP, EFFORT, KNOWN, LOOK, Frontier

NUMBERS = count(1)


def taken(queue: str, how_many: int, priority: int = 50) -> list[Claim]:
    """Claims of one queue, in the order of their ids."""
    claims = []
    for _ in range(how_many):
        claim = Claim.bare(RunId(UUID(int=next(NUMBERS))), ClaimId(UUID(int=0)), queue, 1)
        claim.priority = priority
        claims.append(claim)
    return claims


def place_of(claim: Claim) -> Place:
    return Place(claim.queue, claim.priority, claim.id)


def look(frontier: Frontier, claims: list[Claim], *, share: int, now: float = 0.0, cost: float = 0.001) -> None:
    """A look that begins now."""
    frontier.look_begins()
    frontier.look_ends(Claimed(claims, share), began=now, now=now + cost)


def go_on(frontier: Frontier, limit: int, claims: list[Claim]) -> None:
    frontier.went_on(frontier.going(limit), claims)


def test_a_worker_begins_with_a_look_and_waits_when_it_finds_nothing() -> None:
    frontier = Frontier()
    assert frontier.next(0) == "look"
    look(frontier, [], share=10)
    assert frontier.next(1) == "wait"
    assert frontier.rest(1) is None
    frontier.heard()
    assert (frontier.next(1), frontier.rest(1)) == ("look", 0)


def test_while_one_looks_nobody_else_does() -> None:
    frontier = Frontier()
    frontier.look_begins()
    frontier.heard()
    assert (frontier.next(0), frontier.rest(0)) == ("wait", None)


def test_a_look_that_fails_is_owed() -> None:
    frontier = Frontier()
    frontier.look_begins()
    frontier.look_fails()
    assert frontier.next(0) == "look"


def test_work_heard_of_during_a_look_is_looked_for_after_it() -> None:
    frontier = Frontier()
    frontier.look_begins()
    frontier.heard()
    frontier.look_ends(Claimed([], 10), began=0, now=0.001)
    assert frontier.next(0.002) == "look"


def test_a_queue_that_gave_its_whole_share_is_gone_on_in_behind_its_last_run() -> None:
    frontier, claims = Frontier(), taken("mail", 10)
    look(frontier, claims, share=10)
    assert frontier.next(0.01) == "go on"
    going = frontier.going(8)
    assert (list(going.places), going.share) == ([place_of(claims[-1])], 8)
    more = taken("mail", 8)
    frontier.went_on(going, more)
    assert frontier.next(0.02) == "go on"
    assert list(frontier.going(8).places) == [place_of(more[-1])]


def test_a_queue_that_gave_less_than_its_share_is_not_busy() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10) + taken("events", 9), share=10)
    assert [place.queue for place in frontier.going(20).places] == ["mail"]
    look(frontier, taken("mail", 9), share=10)
    assert frontier.next(0.01) == "wait"


@pytest.mark.parametrize("last", [0, 7])
def test_where_the_end_is_reached_a_look_is_owed(last: int) -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10), share=10)
    go_on(frontier, 8, taken("mail", last))
    assert (frontier.next(0.01), frontier.rest(0.01)) == ("look", 0)
    look(frontier, [], share=10, now=0.01)
    assert frontier.next(0.02) == "wait"


def test_one_queue_at_its_end_leaves_the_others_busy() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10) + taken("events", 10), share=10)
    going = frontier.going(10)
    assert ({place.queue for place in going.places}, going.share) == ({"mail", "events"}, 5)
    frontier.went_on(going, taken("mail", 5) + taken("events", 4))
    assert frontier.next(0.01) == "go on"
    assert [place.queue for place in frontier.going(10).places] == ["mail"]


def test_while_queues_are_busy_there_is_a_look_now_and_then() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10), share=10, now=5.0, cost=0.0)
    assert frontier.next(5.0 + LOOK * 0.9) == "go on"
    assert frontier.next(5.0 + LOOK * 1.1) == "look"
    frontier.look_begins()
    assert frontier.next(5.0 + LOOK * 1.1) == "go on"


def test_the_place_goes_forward_through_priorities_whatever_the_order_of_the_answer() -> None:
    """Claims come in the order of their ids, which is not that of their urgency."""
    frontier = Frontier()
    early_but_less_urgent, late_but_more_urgent = taken("mail", 5, priority=60), taken("mail", 5, priority=40)
    look(frontier, early_but_less_urgent + late_but_more_urgent, share=10)
    assert list(frontier.going(1).places) == [place_of(early_but_less_urgent[-1])]
    go_on(frontier, 2, taken("mail", 2, priority=60))
    last = taken("mail", 2, priority=70)
    go_on(frontier, 2, last)
    assert list(frontier.going(2).places) == [place_of(last[-1])]


def test_a_look_that_finds_only_more_urgent_runs_sets_the_place_back_to_them() -> None:
    frontier, urgent = Frontier(), taken("mail", 10, priority=1)
    look(frontier, taken("mail", 10, priority=50), share=10)
    look(frontier, urgent, share=10)
    assert list(frontier.going(10).places) == [place_of(urgent[-1])]


def test_a_look_that_finds_some_more_urgent_runs_and_some_of_the_backlog_goes_on_in_the_backlog() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10, priority=50), share=10)
    urgent, backlog = taken("mail", 3, priority=1), taken("mail", 7, priority=50)
    look(frontier, urgent + backlog, share=10)
    assert list(frontier.going(10).places) == [place_of(backlog[-1])]


def test_runs_that_were_taken_for_their_age_do_not_take_the_place_past_the_more_urgent_ones() -> None:
    frontier, urgent, aged = Frontier(), taken("mail", 18, priority=10), taken("mail", 2, priority=90)
    look(frontier, aged + urgent, share=20)
    assert list(frontier.going(10).places) == [place_of(urgent[-1])]


def test_an_answer_from_before_the_last_look_is_ignored() -> None:
    frontier, urgent = Frontier(), taken("mail", 10, priority=1)
    look(frontier, taken("mail", 10), share=10)
    before = frontier.going(10)
    look(frontier, urgent, share=10)
    frontier.went_on(before, taken("mail", 10))
    assert list(frontier.going(10).places) == [place_of(urgent[-1])], "it would have passed over the urgent ones"
    frontier.went_on(before, [])
    assert frontier.next(0.01) == "go on", "the end that it reached may be the end no longer"


def test_of_two_answers_after_the_same_look_the_place_is_the_farther_one() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 10), share=10)
    first, second = frontier.going(5), frontier.going(5)
    near, far = taken("mail", 5), taken("mail", 5)
    frontier.went_on(second, far)
    frontier.went_on(first, near)
    assert list(frontier.going(5).places) == [place_of(far[-1])]


@pytest.mark.parametrize("cost", [2 * CHEAP, 10 * CHEAP, 40 * CHEAP])
def test_expensive_looks_are_kept_to_their_part_of_the_time(cost: float) -> None:
    """In a busy queue, and just as well where every look finds little and there is always word of more."""
    for share in (1, 100):
        frontier, now, spent = Frontier(), 0.0, 0.0
        while now < 200 * cost:
            frontier.heard()
            todo = frontier.next(now)
            if todo == "look":
                look(frontier, taken("mail", 1), share=share, now=now, cost=cost)
                now, spent = now + cost, spent + cost
            elif todo == "go on":
                go_on(frontier, 1, taken("mail", 1))
            now += cost / 20
        assert 0.8 <= spent / now * (1 + EFFORT) <= 1.02


def test_where_looks_are_expensive_new_work_is_first_sought_at_the_known_ends() -> None:
    frontier, claims = Frontier(), taken("mail", 3) + taken("events", 2)
    cost = 10 * CHEAP
    look(frontier, claims, share=10, cost=cost)
    assert frontier.next(cost) == "wait"
    frontier.heard()
    assert frontier.next(cost) == "go on"
    going = frontier.going(10)
    assert sorted(place.queue for place in going.places) == ["events", "mail"]
    frontier.went_on(going, taken("mail", 1))
    assert frontier.next(cost) == "wait", "what there is at the front waits until a look is due"
    assert frontier.rest(cost) == pytest.approx(EFFORT * cost)
    assert frontier.next(cost + EFFORT * cost + 1e-6) == "look"


def test_where_looks_are_cheap_all_new_work_is_sought_by_a_look() -> None:
    frontier = Frontier()
    look(frontier, taken("mail", 3), share=10, cost=CHEAP / 2)
    frontier.heard()
    assert frontier.next(CHEAP) == "look"


def test_of_more_busy_queues_than_there_is_room_for_as_many_are_asked_and_in_time_all() -> None:
    frontier = Frontier()
    queues = {f"q{number}" for number in range(30)}
    look(frontier, [claim for queue in sorted(queues) for claim in taken(queue, 1)], share=1)
    asked: set[str] = set()
    for _ in range(200):
        going = frontier.going(7)
        assert (len(going.places), going.share) == (7, 1)
        asked |= {place.queue for place in going.places}
        frontier.went_on(going, [claim for place in going.places for claim in taken(place.queue, 1)])
    assert asked == queues


def test_the_ends_of_only_so_many_queues_are_remembered() -> None:
    frontier = Frontier()
    for number in range(3 * KNOWN):
        look(frontier, taken(f"q{number}", 1), share=10)
        assert len(frontier._places) <= KNOWN + 1


def test_what_a_queue_gives_beside_the_share_does_not_make_it_busy_for_ever() -> None:
    """A run that must be alone comes on top of the share of its queue; the next answer corrects it."""
    frontier = Frontier()
    look(frontier, taken("mail", 10), share=9)
    go_on(frontier, 10, [])
    assert frontier.next(0.01) == "look"
    look(frontier, [], share=10)
    assert frontier.next(0.02) == "wait"


def test_a_look_that_had_no_room_for_a_busy_queue_does_not_make_it_idle() -> None:
    frontier = Frontier()
    look(frontier, taken("busy", 5), share=5)
    look(frontier, taken("other", 1), share=1, now=1.0)
    assert frontier.next(1.01) == "go on"
    assert {place.queue for place in frontier.going(10).places} >= {"busy"}


def test_a_busy_queue_that_turns_out_empty_is_looked_at_once_more_and_then_left() -> None:
    frontier = Frontier()
    look(frontier, taken("busy", 5), share=5)
    look(frontier, [], share=5, now=1.0)
    go_on(frontier, 5, [])
    assert frontier.next(1.02) == "look"
    look(frontier, [], share=5, now=1.03)
    assert frontier.next(1.04) == "wait"


def test_a_run_that_must_be_alone_moves_no_place() -> None:
    frontier = Frontier()
    lone, *others = taken("q", 4)
    far = taken("q", 1, priority=90)[0]
    far.alone = True
    look(frontier, [lone, *others, far], share=4)
    assert frontier.going(4).places == [place_of(others[-1])]


def idle() -> Frontier:
    """One that has looked, and found nothing."""
    frontier = Frontier()
    look(frontier, [], share=10)
    return frontier


def test_work_that_was_heard_of_in_one_queue_is_asked_of_that_one() -> None:
    frontier = idle()
    frontier.heard("letters")
    frontier.heard("letters")
    assert (frontier.next(1), frontier.ask()) == ("ask", "letters")
    assert (frontier.next(1), frontier.ask()) == ("wait", None), "it is asked once"


def test_work_that_was_heard_of_in_two_queues_is_looked_for() -> None:
    frontier = idle()
    frontier.heard("letters")
    frontier.heard("parcels")
    assert frontier.next(1) == "look"
    look(frontier, [], share=10, now=1)
    assert frontier.next(2) == "wait"


def test_a_word_while_one_looks_is_asked_and_a_look_answers_those_before_it() -> None:
    frontier = idle()
    frontier.heard("letters")
    frontier.look_begins()
    assert frontier.next(1) == "wait"
    frontier.heard("letters")
    assert frontier.next(1) == "ask"


def test_in_a_busy_queue_no_word_is_asked_for() -> None:
    frontier = Frontier()
    look(frontier, taken("letters", 10), share=10)
    frontier.heard("parcels")
    assert (frontier.next(LOOK / 2), frontier.next(2 * LOOK)) == ("go on", "look")


def test_a_queue_that_takes_long_to_answer_is_not_asked_for_every_word() -> None:
    frontier = idle()
    frontier.heard("letters")
    frontier.ask()
    frontier.asked(began=1, now=1 + CHEAP)
    frontier.heard("letters")
    assert (frontier.next(1 + CHEAP), frontier.next(1 + CHEAP + EFFORT * CHEAP)) == ("wait", "look")
