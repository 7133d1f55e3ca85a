"""Facts in, causes out: each by itself, and which come together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from stepwell.model.explanation import (
    EndFacts,
    QueueFacts,
    RunFacts,
    Surroundings,
    Taken,
    Why,
    explain,
)
from stepwell.model.notes import Progress
from stepwell.model.rate import Rate
from stepwell.model.states import FINISHED, State
from stepwell.model.wording import among, length, near, nth, times
from stepwell.model.worker import WorkerInfo

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
SOON, AGO = NOW + timedelta(seconds=90), NOW - timedelta(seconds=90)
RUN, OTHER = UUID(int=7), UUID(int=8)


def a_run(state: State = State.PENDING, **facts: Any) -> RunFacts:
    return RunFacts(**({"id": RUN, "name": "shop.charge", "queue": "mail", "state": state, "created_at": AGO} | facts))


def a_worker(name: str = "web1", **facts: Any) -> WorkerInfo:
    known: dict[str, Any] = {
        "id": UUID(int=len(name) * 1000 + sum(map(ord, name))), "name": name, "host": "h", "pid": 3, "version": "1",
        "queues": None, "names": ["shop.charge"], "slots": 10, "running": 0, "state": "live", "started_at": AGO,
        "lease_until": SOON, "stopped_at": None, "lease_left": SOON - NOW, "samples": [],
    }  # fmt: skip
    return WorkerInfo(**(known | facts))


def around(*workers: WorkerInfo, **facts: Any) -> Surroundings:
    led = frozenset({"due", "reaper"}) if workers else frozenset()
    return Surroundings(**({"now": NOW, "workers": workers, "services": led} | facts))


def told(run: RunFacts, surroundings: Surroundings) -> list[tuple[Why, str]]:
    return [(cause.code, cause.text) for cause in explain(run, surroundings).causes]


def only(run: RunFacts, surroundings: Surroundings) -> tuple[Why, str]:
    (one,) = told(run, surroundings)
    return one


# -- pending


def test_nothing_stands_in_its_way() -> None:
    code, text = only(a_run(), around(a_worker()))
    assert code is Why.NEXT
    assert "web1" in text


def test_no_worker_is_alive() -> None:
    assert only(a_run(), around()) == (Why.QUEUE_NOT_SERVED, "no worker is alive: start `stepwell worker`")


def test_no_live_worker_serves_the_queue() -> None:
    code, text = only(a_run(), around(a_worker(queues=["reports", "sums"])))
    assert code is Why.QUEUE_NOT_SERVED
    assert "serves its queue 'mail'" in text
    assert "web1 (reports, sums)" in text


def test_no_live_worker_of_the_queue_knows_the_name() -> None:
    there, elsewhere = a_worker(names=["shop.add"]), a_worker("back2", queues=["reports"])
    code, text = only(a_run(), around(there, elsewhere))
    assert code is Why.NAME_NOT_KNOWN
    assert "knows 'shop.charge'; serving it: web1; knowing it, but serving other queues: back2 (reports)" in text


def test_a_worker_that_does_not_say_what_it_knows_may_know_it() -> None:
    assert only(a_run(), around(a_worker(names=None)))[0] is Why.NEXT


def test_a_paused_queue_is_told_with_since_when_and_by_whom() -> None:
    code, text = only(a_run(), around(a_worker(), queue=QueueFacts(paused_at=AGO, paused_by="ann@desk")))
    assert code is Why.QUEUE_PAUSED
    assert "paused since 2026-11-16 02:58:30 UTC by ann@desk" in text


def test_a_full_cap_names_who_holds_it() -> None:
    queue = QueueFacts(places=Taken(2, 2, [OTHER, UUID(int=9)]))
    code, text = only(a_run(), around(a_worker(), queue=queue))
    assert code is Why.CAP_FULL
    assert text == f"2 of 2 places of its queue 'mail' are taken, by {OTHER}, {UUID(int=9)}"


def test_a_full_cap_of_a_key_names_the_key_and_who_holds_it() -> None:
    queue = QueueFacts(places=Taken(9, 1), key_places=Taken(1, 1, [OTHER]))
    code, text = only(a_run(limit_key="acme"), around(a_worker(), queue=queue))
    assert code is Why.KEY_CAP_FULL
    assert text == f"1 of 1 places of the key 'acme' in its queue 'mail' are taken, by {OTHER}"


def test_a_spent_rate_says_until_when() -> None:
    queue = QueueFacts(rate=Rate.of("100/min"), spent_until=SOON)
    code, text = only(a_run(), around(a_worker(), queue=queue))
    assert code is Why.RATE_SPENT
    assert "100/min, is spent until 2026-11-16 03:01:30 UTC, in 1 min 30 s" in text


def test_a_rate_that_is_not_spent_is_no_reason() -> None:
    assert only(a_run(), around(a_worker(), queue=QueueFacts(rate=Rate.of("9/s"))))[0] is Why.NEXT


def test_it_must_be_alone_and_every_worker_that_could_take_it_runs_another_such() -> None:
    worker, foreign = a_worker(), a_worker("back2", names=[])
    code, text = only(a_run(alone=True), around(worker, foreign, lone={worker.id: OTHER}))
    assert code is Why.MUST_BE_ALONE
    assert str(OTHER) in text
    assert only(a_run(alone=True), around(worker, a_worker("web2"), lone={worker.id: OTHER}))[0] is Why.NEXT
    assert only(a_run(), around(worker, lone={worker.id: OTHER}))[0] is Why.NEXT


def test_every_slot_is_taken() -> None:
    code, text = only(a_run(), around(a_worker(running=10)))
    assert code is Why.SLOTS_FULL
    assert "10 runs in 10 slots of web1" in text


@pytest.mark.parametrize(("ahead", "says"), [(1, "1 ahead"), (1234, "1,234 ahead"), (10_001, "more than 10,000 ahead")])
def test_it_waits_in_line(ahead: int, says: str) -> None:
    code, text = only(a_run(), around(a_worker(), ahead=ahead))
    assert code is Why.IN_LINE
    assert says in text
    assert "of the key 'acme'" in only(a_run(limit_key="acme"), around(a_worker(), ahead=ahead))[1]


def test_all_that_is_in_its_way_is_told_what_to_mend_first_comes_first() -> None:
    queue = QueueFacts(paused_at=AGO, places=Taken(1, 1, [OTHER]))
    run = a_run(expires_at=SOON, deadline_at=SOON)
    codes = [code for code, _ in told(run, around(queue=queue, ahead=3))]
    assert codes == [
        Why.QUEUE_PAUSED, Why.QUEUE_NOT_SERVED, Why.CAP_FULL, Why.IN_LINE, Why.EXPIRES, Why.DEADLINE,
    ]  # fmt: skip


# -- scheduled


SCHEDULED = a_run(State.SCHEDULED, due_at=SOON, attempt=3, failures=3)


def test_a_retry_is_told_with_its_number_and_the_last_error() -> None:
    ended = EndFacts(3, "failed", "ValueError: boom", AGO)
    code, text = only(SCHEDULED, around(a_worker(), ended=ended))
    assert code is Why.NOT_DUE
    assert text == (
        "it is not due before 2026-11-16 03:01:30 UTC, in 1 min 30 s: its 3rd retry, after ValueError: boom"
    )


def test_a_snoozed_run_says_so() -> None:
    code, text = only(SCHEDULED, around(a_worker(), ended=EndFacts(2, "snoozed", None, AGO)))
    assert code is Why.NOT_DUE
    assert "attempt 2 snoozed it" in text


def test_a_delayed_start_says_so() -> None:
    assert "a delayed start" in only(replace(SCHEDULED, attempt=0, failures=0), around(a_worker()))[1]
    assert "debounced" in only(replace(SCHEDULED, attempt=0, failures=0, debounced=True), around(a_worker()))[1]


def test_a_run_that_is_due_and_was_not_moved_asks_for_a_worker() -> None:
    late = replace(SCHEDULED, due_at=AGO)
    (overdue, nobody) = told(late, around())
    assert overdue[0] is Why.OVERDUE
    assert "start `stepwell worker`" in overdue[1]
    assert nobody[0] is Why.QUEUE_NOT_SERVED


# -- running


RUNNING = a_run(State.RUNNING, attempt=2, started_at=AGO, worker=UUID(int=5))


def test_it_runs_on_a_worker() -> None:
    progress = Progress("rows", 10, 100, None, AGO)
    code, text = only(RUNNING, around(a_worker(), holder=a_worker(), progress=progress))
    assert code is Why.RUNNING
    assert "web1 (host h, pid 3) since 2026-11-16 02:58:30 UTC, for 1 min 30 s, attempt 2" in text
    assert "last progress 1 min 30 s ago: rows 10 of 100" in text


@pytest.mark.parametrize("holder", [a_worker(state="lost", lease_until=AGO), a_worker(state="stopped"), None])
def test_a_worker_without_a_lease_is_reaped_soon_if_someone_is_there(holder: WorkerInfo | None) -> None:
    code, text = only(RUNNING, around(a_worker(), holder=holder))
    assert code is Why.LEASE_EXPIRED
    assert "reaped within 5 s" in text
    assert "start `stepwell worker`" in only(RUNNING, around(holder=holder))[1]


def test_a_server_that_came_up_just_now_waits_before_it_reaps() -> None:
    calm = around(a_worker(), calm_until=NOW + timedelta(seconds=3))
    assert "reaped within 8 s" in only(RUNNING, calm)[1]


def test_a_deadline_is_told_of_a_running_run_and_its_expiry_is_not() -> None:
    run = replace(RUNNING, deadline_at=SOON, expires_at=SOON)
    (_, deadline) = told(run, around(a_worker(), holder=a_worker()))
    assert deadline[0] is Why.DEADLINE
    assert "must have ended by 2026-11-16 03:01:30 UTC" in deadline[1]


# -- the rest


def test_limits_of_time_that_have_passed_say_who_is_to_see_to_it() -> None:
    run = a_run(deadline_at=AGO, expires_at=AGO)
    (_, expires, deadline) = told(run, around(a_worker()))
    assert expires[1].endswith("it expires within 5 s")
    assert deadline[1].endswith("it fails within 5 s")
    assert told(run, around())[-1][1].endswith("start `stepwell worker`")


def test_waiting_and_paused_runs_say_so() -> None:
    assert only(a_run(State.WAITING, due_at=SOON), around())[0] is Why.WAITING
    assert only(a_run(State.PAUSED), around())[0] is Why.RUN_PAUSED


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_finished_run_says_how_and_when(state: State) -> None:
    run = a_run(state, finished_at=AGO, attempt=2, error="ValueError: boom" if state is State.FAILED else None)
    code, text = only(run, around())
    assert code is Why.FINISHED
    assert state.value in text
    assert "2026-11-16 02:58:30 UTC, 1 min 30 s ago" in text
    assert ("boom" in text) == (state is State.FAILED)


# -- words


def test_lengths_of_time_numbers_and_lists_in_words() -> None:
    seconds = {0.42: "0.4 s", 12: "12 s", 125: "2 min 5 s", 3600: "1 h", 90_000: "1 d 1 h", 86_405: "1 d"}
    assert {each: length(timedelta(seconds=each)) for each in seconds} == seconds
    assert [nth(each) for each in (1, 2, 3, 4, 11, 12, 13, 21, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th",
    ]  # fmt: skip
    assert among([1, 2]) == "1, 2"
    assert among(range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert among([1], of=3) == "1 and 2 more"


@pytest.mark.parametrize(
    ("name", "others", "meant"),
    [
        ("shiped", ["paid", "shipped"], "shipped"),
        ("Paid", ["paid"], "paid"),
        ("pya", ["ship", "pay"], "pay"),
        ("order-paid", ["order_paid"], "order_paid"),
        ("approve", ["approved"], "approved"),
        ("refund", ["paid", "shipped"], None),
        ("paid", ["paid"], None),
        ("paid", [], None),
    ],
)
def test_a_name_that_is_nearly_another_is_taken_for_it(name: str, others: list[str], meant: str | None) -> None:
    assert near(name, others) == meant


def test_how_often_is_said_in_words() -> None:
    assert [times(1), times(2), times(1200)] == ["once", "twice", "1,200 times"]
