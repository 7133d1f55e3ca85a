"""The life of a run: start, claim, due, and the locking of lost claims.

A claim is the right of one worker to one attempt. It is named by the pair (id, claim_id): the id is the run's, the
claim_id is random and made for one claim call. Every later write by the worker names both and demands that the run is
still running; if it finds no row, the claim is lost, whatever the cause:

    pending ──claim──► running ──┬─ complete, fail, retry, repeat, snooze, release: by its worker (settle.py)
                                 ├─ reaped: its worker's lease ended, and the reaper settled it
                                 └─ cancelled: from outside

`attempt` counts and `claim_id` fences. A counter alone would repeat itself when a replica is promoted that had not
received the last claims.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from stepwell.model.errors import AlreadyFinished, KeyConflict, NotFinished, NotFound, Unavailable
from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.outcome import Completed, Outcome
from stepwell.model.pins import claim_name
from stepwell.model.run import Claim, Claimed, Exchanged, Order, Wanted
from stepwell.model.start import Start, first_by_key
from stepwell.model.states import State
from stepwell.model.word import Word
from stepwell.store import copying, rows
from stepwell.store.pool import Row, Transaction, Tx

MANY = 200
"""Number of rows from which a write uses COPY."""

CALM = timedelta(seconds=3)
"""Time after a server start in which no claim is lost: workers that could not reach the server renew their leases
first."""
AGEING = timedelta(seconds=1)
"""Waiting time, for each step of priority between a run and the most urgent one, after which it is as urgent."""
MOST = 5_000
"""Runs per statement: enough to be fast, and a bound on how long one call blocks others."""
KEYS = 200
"""Limit keys of a queue that are served by one claim."""
KEEP_KEYS = timedelta(days=30)
"""Time for which a key is remembered. It is always remembered while its run is live."""


async def start(tx: Tx, starts: Sequence[Start]) -> list[RunId]:
    """-> pending, or scheduled with a delay: start runs. Return the id of the run to which each start led.

    A start whose key is taken leads to the run that holds it, or raises KeyConflict.
    """
    if len(starts) == 1 and starts[0].is_plain:
        await start_one(tx, starts[0])
        return [starts[0].id]
    started = await tx.rows(
        "start_runs",
        ids=[each.id for each in starts],
        names=[claim_name(each.terms.name, each.terms.pin) for each in starts],
        queues=[each.terms.queue for each in starts],
        priorities=[each.terms.priority for each in starts],
        states=["scheduled" if each.terms.is_delayed else "pending" for each in starts],
        inputs=[each.input for each in starts],
        keys=[each.key for each in starts],
        digests=[each.digest for each in starts],
        tags=[each.terms.tags for each in starts],
        retries=[each.terms.retry for each in starts],
        timeouts=[each.terms.timeout for each in starts],
        delays=[each.terms.delay for each in starts],
        ats=[each.terms.at for each in starts],
        expiries=[each.terms.expires for each in starts],
        deadlines=[each.terms.deadline for each in starts],
        limit_keys=[each.limit_key for each in starts],
        per_keys=[each.terms.per_key for each in starts],
        unique_keys=[each.unique_key for each in starts],
        keeps=[each.terms.keep for each in starts],
        parent_ids=[each.terms.parent_id for each in starts],
        root_ids=[each.terms.root_id for each in starts],
        kinds=[each.terms.kind for each in starts],
        nodes=[each.node for each in starts],
        on_failures=[each.terms.on_failure for each in starts],
        keep_keys=KEEP_KEYS,
    )
    if len(started) == len(starts):
        return [each.id for each in starts]
    return await _existing(tx, starts)


async def start_all(tx: Tx, starts: Sequence[Start]) -> list[RunId]:
    """-> pending, scheduled: start any number of runs, in as many statements as are needed so that none of them blocks
    others for long."""
    ids: list[RunId] = []
    for first in range(0, len(starts), MOST):
        ids += await start(tx, starts[first : first + MOST])
    return ids


async def once_for_each_key(
    starts: Sequence[Start], start: Callable[[Sequence[Start]], Awaitable[list[RunId]]]
) -> dict[RunId, RunId]:
    """Start only the first of the starts that share a key: all of them lead to the same run. Return, for each start
    that led to another run, that run's id."""
    first = first_by_key(starts)
    unique = [each for each in starts if each.key is None or first[each.key] is each]
    ids = dict(zip((each.id for each in unique), await start(unique), strict=True))
    led = ((each.id, ids[each.id if each.key is None else first[each.key].id]) for each in starts)
    return {made: there for made, there in led if there != made}


async def start_one(tx: Tx, start: Start, word: Word | None = None) -> bool:
    """-> pending: start one plain run. Return True if the notification was sent with it."""
    terms = start.terms
    made = await tx.rows(
        "start_run",
        id=start.id,
        name=terms.name,
        queue=terms.queue,
        priority=terms.priority,
        input=start.input,
        tags=terms.tags,
        retry=terms.retry,
        timeout=terms.timeout,
        parent_id=terms.parent_id,
        root_id=terms.root_id,
        channel=word and word.channel,
        word=word and word.text,
    )
    return bool(made and made[0]["said"])


async def start_plain(tx: Transaction, starts: Iterable[Start]) -> None:
    """-> pending: start any number of plain runs by COPY, which is the fastest way.

    It needs a transaction of its own, and cannot be repeated in this way: an id that exists already is an error. If the
    answer to its commit is lost, a repetition waits at the first id until the outcome of that commit is known.
    """
    await tx.copy("runs", copying.COLUMNS, copying.chunks(starts))


async def _existing(tx: Tx, starts: Sequence[Start]) -> list[RunId]:
    """Return the id of the run to which each start led, when some starts were not inserted."""
    keyed = [each.key for each in starts if each.key is not None]
    held = {row["key"]: row for row in await tx.rows("keys_held", keys=keyed)} if keyed else {}
    unique = [each.unique_key for each in starts if each.unique_key is not None]
    unfinished = {row["unique_key"]: row["id"] for row in await tx.rows("unique_runs", keys=unique)} if unique else {}
    ids = []
    for each in starts:
        holder = held.get(each.key) if each.key is not None else None
        if holder is None and each.key is not None:
            raise Unavailable(f"the key {each.key!r} expired while this start looked for its run")
        if holder is not None and holder["digest"] != each.digest and not await _is_alike(tx, holder, each):
            raise KeyConflict(holder["key"], holder["run_id"])
        if each.unique_key is not None and each.unique_key not in unfinished:
            raise Unavailable(f"the run that is unique by {each.unique_key!r} finished while this start looked for it")
        found = holder["run_id"] if holder is not None else unfinished.get(each.unique_key, each.id)
        ids.append(RunId(found))
    return ids


async def _is_alike(tx: Tx, holder: Row, start: Start) -> bool:
    """Tell whether the key was reserved for the same name and input by SQL, which stores no digest."""
    if holder["digest"]:
        return False
    return bool(await tx.rows("runs_alike", ids=[holder["run_id"]], names=[start.terms.name], inputs=[start.input]))


async def undo_starts(tx: Tx, starts: Sequence[Start]) -> None:
    """Take back starts, in the transaction that made them."""
    keys = [each.key for each in starts if each.key is not None]
    await tx.rows("undo_starts", ids=[each.id for each in starts], keys=keys)


async def tell_with_commit(tx: Tx, words: Sequence[Word]) -> None:
    """Send notifications that are delivered when this transaction commits."""
    await tx.rows("tell_with_commit", channels=[word.channel for word in words], words=[word.text for word in words])


async def debounce(tx: Tx, start: Start) -> RunId:
    """-> scheduled: start a run that begins once no other start with its debounce key has come for a while. Return its
    id."""
    terms = start.terms
    made = await tx.rows(
        "debounce_run",
        id=start.id,
        name=terms.name,
        queue=terms.queue,
        priority=terms.priority,
        input=start.input,
        tags=terms.tags,
        retry=terms.retry,
        timeout=terms.timeout,
        delay=terms.delay,
        expiry=terms.expires,
        deadline=terms.deadline,
        debounce_key=start.debounce_key,
        keep=terms.keep,
        on_failure=terms.on_failure,
        parent_id=terms.parent_id,
        root_id=terms.root_id,
    )
    return RunId(made[0]["id"])


async def start_again(tx: Tx, origin: UUID, new_id: RunId) -> str:
    """-> pending: start a new run with the input of a finished one. Return its queue."""
    started = await tx.rows("start_runs_again", ids=[new_id], origins=[origin])
    if started:
        return str(started[0]["queue"])
    found = await tx.rows("run_by_id", id=origin)
    if not found:
        raise NotFound("id", str(origin))
    if not State(found[0]["state"]).finished:
        raise NotFinished(origin, found[0]["state"])
    return str(found[0]["queue"])  # an earlier try, whose answer was lost, has started it


async def undo_finished_starts(tx: Tx, ids: Sequence[UUID]) -> None:
    """Take back repeated starts whose first try has finished already. Call it after the start, in the same
    transaction."""
    await tx.rows("undo_finished_starts", ids=list(ids))


async def note_repeated_starts(tx: Tx, ids: Sequence[UUID]) -> None:
    """Record repeated starts, so that their first try has no effect any more, however late it arrives. Call it after
    the start, in the same transaction."""
    await tx.rows("note_repeated_starts", ids=list(ids))


async def claim(tx: Tx, wanted: Wanted, claim_id: ClaimId) -> Claimed:
    """pending -> running: claim up to `limit` runs, the same share from each queue, the most urgent first and then the
    oldest."""
    taken = await tx.rows(
        "claim_runs",
        queues=wanted.queues,
        worker=wanted.worker,
        names=wanted.names,
        limit=wanted.limit,
        alone=wanted.alone,
        claim_id=claim_id,
        ageing=AGEING,
        aged=max(1, wanted.limit // 10),
    )
    first = taken[0]
    claims = rows.claims(taken, claim_id, first=2) if first["id"] is not None else []
    return Claimed(claims, first["share"] if claims else wanted.limit, first["others"])


async def claim_from(tx: Tx, queue: str, wanted: Wanted, claim_id: ClaimId) -> Claimed:
    """pending -> running: claim up to `limit` runs from one queue that has no limit, the most urgent first and then the
    oldest. The statement is shorter than that of `claim`, for a worker that was notified of work in one queue."""
    taken = await tx.rows(
        "claim_from_queue",
        queue=queue,
        names=wanted.names,
        worker=wanted.worker,
        limit=wanted.limit,
        claim_id=claim_id,
    )
    first = taken[0]
    claims = rows.claims(taken, claim_id, first=1) if first["id"] is not None else []
    return Claimed(claims, wanted.limit, first["more"])


async def claim_limited(tx: Tx, wanted: Wanted, claim_id: ClaimId) -> Claimed:
    """pending -> running, up to `limit`: from queues with a limit, and of runs with a limit key, in turns."""
    taken = await tx.rows(
        "claim_limited_runs",
        queues=wanted.queues,
        worker=wanted.worker,
        names=wanted.names,
        limit=wanted.limit,
        alone=wanted.alone,
        keys=KEYS,
        claim_id=claim_id,
        ageing=AGEING,
    )
    first = taken[0]
    claims = rows.claims(taken, claim_id, first=2) if first["id"] is not None else []
    return Claimed(claims, again=first["again"], further=first["further"])


async def exchange(
    tx: Tx,
    completed: Sequence[tuple[Claim, Completed]],
    order: Order,
    *,
    worker: WorkerId,
    names: Sequence[str],
    word: Word | None = None,
) -> Exchanged:
    """running -> completed, and pending -> running behind the places of busy queues: settle and claim in one
    statement."""
    completed = sorted(completed, key=by_id)
    ids = [claim.id for claim, _ in completed]
    answer = await tx.rows(
        "exchange_runs",
        ids=ids,
        claim_ids=[claim.claim_id for claim, _ in completed],
        results=b"[%b]" % b",".join([outcome.result for _, outcome in completed]),
        queues=[place.queue for place in order.places],
        priorities=[place.priority for place in order.places],
        places=[place.id for place in order.places],
        share=order.share,
        worker=worker,
        names=names,
        claim_id=order.claim_id,
        channel=word and word.channel,
        word=word and word.text,
    )
    first = answer[0]
    lost = set() if first["moved"] is None else set(ids).difference(first["moved"])
    claims = rows.claims(answer, order.claim_id, first=2) if first["id"] is not None else []
    return Exchanged(claims, lost, first["said"])


def by_id(settlement: tuple[Claim, Outcome]) -> tuple[bytes, int]:
    """Sort key for settlements: the statements need ascending ids. Of two claims of one run the later counts, so it
    comes last."""
    claim = settlement[0]
    return claim.id.bytes, claim.attempt


async def due(tx: Tx, *, limit: int) -> list[str]:
    """scheduled, waiting -> pending: move runs whose time has come. Return the queue of each."""
    return [row["queue"] for row in await tx.rows("due_runs", limit=limit)]


async def next_due(tx: Tx) -> timedelta | None:
    """Return the time until a run is due, expires or passes its deadline."""
    found = await tx.rows("next_due")
    return timedelta(seconds=found[0]["seconds"]) if found else None


async def refuse_finished(tx: Tx, run_id: UUID) -> None:
    """Raise the reason why a run could not be cancelled. A run that was cancelled before is no error."""
    found = await tx.rows("run_by_id", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    if found[0]["state"] != State.CANCELLED:
        raise AlreadyFinished(run_id, found[0]["state"])


async def lock_lost_claims(tx: Tx, *, limit: int, calm: timedelta = CALM) -> list[Claim]:
    """Return claims whose worker no longer holds a lease, locked until the transaction ends."""
    lost = await tx.rows("lock_lost_claims", limit=limit, calm=calm)
    claims = [rows.claim(row) for row in lost]
    for claim, row in zip(claims, lost, strict=True):
        claim.turn, claim.holder = row["turn"], row["claimed_by"]
    return claims
