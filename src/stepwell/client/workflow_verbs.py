"""Verbs on workflows from outside: signals, updates, published state, history, pause, fork."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from stepwell.concurrency.retry_unavailable import patiently
from stepwell.dispatch.base import Channel, Wakes, tell_all
from stepwell.engine import arrivals, forks, pauses, runs, workflows
from stepwell.model.events import Event, EventType, HistoryEvent, Sent
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.start import Start
from stepwell.model.states import State
from stepwell.model.turn import Consequences, OpenRun
from stepwell.replay.replay import LONG_AGO
from stepwell.store.pool import Database

LOOK = 0.5
"""Longest pause between two polls for the answer to an update, in seconds."""


class WorkflowVerbs:
    """The verbs of the client that concern workflows only."""

    def __init__(self, database: Database, wakes: Wakes) -> None:
        self._database = database
        self._wakes = wakes

    async def send(self, run_id: UUID, type: EventType, name: str, value: bytes) -> Sent:
        """Deliver a signal or a request to a live workflow. It is stored exactly once when this returns, even if
        answers were lost."""
        arrival = new_run_id()
        event = Event(0, type, LONG_AGO, name=name, value=value, id=arrival)
        if type is EventType.UPDATE_REQUESTED:
            event.run_id = arrival

        workflow: str | None = None

        async def send(again: bool) -> Consequences:
            nonlocal workflow
            after = Consequences()
            async with self._database.transaction() as tx:
                if again and await arrivals.has_arrived(tx, run_id, event, after):
                    return after
                workflow = await arrivals.arrive(tx, run_id, event, after)
                if workflow is None:
                    await arrivals.refuse_arrival(tx, run_id)
                if again:
                    await runs.note_repeated_starts(tx, [arrival])
            return after

        tell_all(self._wakes, await patiently(send))
        return Sent(arrival, workflow)

    async def signal_or_start(self, start: Start, name: str, value: bytes) -> RunId:
        """Deliver a signal to the run that this start leads to: a new run, or the existing one with its key. Return its
        id."""
        event = Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name=name, value=value, id=new_run_id())
        led_to: list[RunId] = []

        async def send(again: bool) -> Consequences:
            after = Consequences()
            async with self._database.transaction() as tx:
                # The first try had chosen this run before its answer was lost. If the signal is there, that try
                # committed, whatever became of the run since.
                if again and led_to and await arrivals.has_arrived(tx, led_to[-1], event, after):
                    return after
                led_to.append(await workflows.signal_or_start(tx, start, event, after))
                if again and event.id is not None:
                    await runs.note_repeated_starts(tx, [start.id, event.id])
            return after

        tell_all(self._wakes, await patiently(send))
        return led_to[-1]

    async def answer(self, run_id: UUID, update: UUID) -> Event:
        """Poll the history for the answer to an update, and return it."""
        pause, after = 0.01, 0
        while True:
            found, after = await self._look_for_answer(run_id, update, after)
            if found is not None:
                return found
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK)

    async def _look_for_answer(self, run_id: UUID, update: UUID, after: int) -> tuple[Event | None, int]:
        return await patiently(lambda _again: workflows.answer(self._database, run_id, update, after))

    async def state(self, run_id: UUID) -> bytes | None:
        """Return the state that the workflow published last; None if it has published none."""
        return await patiently(lambda _again: workflows.published(self._database, run_id))

    async def history(self, run_id: UUID) -> list[HistoryEvent]:
        """Return the events of a workflow, in order."""
        return await patiently(lambda _again: workflows.shown(self._database, run_id))

    async def pause(self, run_id: UUID, *, by: str = "") -> None:
        """Pause a run; a workflow that is in a turn pauses after it."""
        steered = await patiently(lambda _again: pauses.pause(self._database, [run_id], by=by))
        if not steered.queues:
            await patiently(lambda _again: pauses.refuse_pause(self._database, run_id, State.PAUSED))
        self._wakes.announce(Channel.ARRIVED, [each.hex for each in steered.heard])

    async def resume(self, run_id: UUID) -> None:
        """Resume a paused run."""
        steered = await patiently(lambda _again: pauses.resume(self._database, [run_id]))
        if not steered.queues:
            await patiently(lambda _again: pauses.refuse_pause(self._database, run_id, None))
        self._wakes.announce(Channel.ARRIVED, [each.hex for each in steered.heard])
        self._wakes.announce(Channel.PENDING, steered.queues)
        self._wakes.announce(Channel.SCHEDULED, ["0"])

    async def fork(self, run_id: UUID, at: int) -> RunId:
        """Start a new run whose history is a copy of this one's, up to the event `at`."""
        new_id = new_run_id()

        async def fork(again: bool) -> set[str]:
            async with self._database.transaction() as tx:
                return await forks.fork(tx, run_id, new_id, at=at, again=again)

        self._wakes.announce(Channel.PENDING, await patiently(fork))
        self._wakes.announce(Channel.SCHEDULED, ["0"])
        return new_id

    async def open_runs(self, *, after: UUID, limit: int) -> list[OpenRun]:
        """Return workflows that have begun and are not finished, oldest first, after the id `after`."""
        return await patiently(lambda _again: forks.open_runs(self._database, after=after, limit=limit))

    async def count_open(self) -> int:
        """Count the workflows that have begun and are not finished."""
        return await patiently(lambda _again: forks.count_open(self._database))

    async def events(self, run_id: UUID, *, after: int) -> list[Event]:
        """Return the events after this one, in the form in which a replay takes them."""
        return await patiently(lambda _again: workflows.history(self._database, run_id, after=after))

    async def children(self, run_id: UUID) -> Sequence[RunId]:
        """Return the ids of the runs that a workflow started, in their order."""
        return await patiently(lambda _again: workflows.children(self._database, run_id))
