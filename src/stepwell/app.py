"""The app: definitions, settings, and the one place that knows every concrete class."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from stepwell.client.client import Client
from stepwell.client.in_transaction import InTransaction
from stepwell.codec import decode
from stepwell.concurrency.background import in_background
from stepwell.config import AS_SET, settings
from stepwell.context.log_capture import checked_level
from stepwell.definitions.decorators import Registering
from stepwell.definitions.definition import (
    Definitions,
    NamedDefinition,
)
from stepwell.definitions.options import Options, checked_text, checked_texts
from stepwell.definitions.queue import Desk, Queue
from stepwell.definitions.run import Door, Run
from stepwell.definitions.workflow import Workflow
from stepwell.dispatch.postgres import PostgresClaims, PostgresWakes
from stepwell.engine.workers import Identity
from stepwell.executors.base import Executor
from stepwell.executors.registry import Executors
from stepwell.hooks.failures import log_failures as failures_logged
from stepwell.hooks.registry import Hooks, checked_names
from stepwell.model.counting import whole
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import NotDurable, WrongUse
from stepwell.model.hooks import EventName, RunEvent, RunEventName, WorkerEvent, WorkerEventName
from stepwell.model.ids import new_worker_id
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.queue import QueueInfo
from stepwell.model.run import Kind, Page
from stepwell.model.worker import WorkerInfo
from stepwell.operator.filters import States
from stepwell.operator.operator import Operator
from stepwell.operator.parts import Parts
from stepwell.replay.current_replay import here
from stepwell.replay.places import line_of_user
from stepwell.services.due import Due
from stepwell.services.partitions import Partitions
from stepwell.services.reaper import Reaper
from stepwell.services.service import Services
from stepwell.services.teller import Teller
from stepwell.services.unblock import Unblock
from stepwell.store import embedded, migrate
from stepwell.store.lent import Lending
from stepwell.store.namespace import Home, namespace_of
from stepwell.store.pool import Database
from stepwell.store.statements import checked_schema
from stepwell.sync import Portal
from stepwell.telemetry import Telemetry, log
from stepwell.version import VERSION
from stepwell.worker.bodies import Bodies
from stepwell.worker.direct import DirectLink
from stepwell.worker.turns.turns import RunCode
from stepwell.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
RunHook = TypeVar("RunHook", bound=Callable[[RunEvent], object])
WorkerHook = TypeVar("WorkerHook", bound=Callable[[WorkerEvent], object])
AnyHook = TypeVar("AnyHook", bound=Callable[[RunEvent | WorkerEvent], object])

MOST_DOUBTS = 1000
"""Limit of unknown signals that an app warns of, for programs that make up names."""


@dataclass(slots=True)
class Opening:
    """An app that is open on one event loop, and the number of blocks that entered it."""

    database: Database
    wakes: PostgresWakes
    client: Client
    operator: Operator
    users: int = 0

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.database.close)
            closing.push_async_callback(self.wakes.close)
            closing.push_async_callback(self.client.close)


class App(Registering):
    """An app: it registers tasks and workflows, starts runs, and runs workers, on Postgres.

    Give the DSN of your database. Without one, an embedded server in `.stepwell/` is used.

    >>> app = App("postgresql://localhost/shop")
    >>> @app.task
    ... async def charge(order: int, cents: int) -> str: ...
    >>> async with app, app.worker():
    ...     run = await charge.start(7, 1999)
    ...     print(await run.result())
    """

    @refuse_unknown_options
    def __init__(
        self,
        dsn: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        schema: str | None = None,
        lease: Duration | None = None,
        keep: Duration | None = AS_SET,
        pooler: bool | None = None,
        capture_logs: str | int | None = "INFO",
        log_failures: bool | None = None,
        migrate: bool = True,
        executors: Mapping[str, Executor] | None = None,
    ) -> None:
        """Configure the app; nothing connects before `async with app:`. If they are left out, `dsn`, `home`, `schema`,
        `lease`, `keep`, `pooler` and `log_failures` are read from the environment (STEPWELL_DSN, STEPWELL_HOME, …),
        else they have their defaults.

        `lease` is how long a worker's claims outlive its last heartbeat, `keep` how long finished runs are kept,
        `capture_logs` the lowest level of log lines that are kept with their runs. `log_failures=False` logs no
        failures. With `migrate=False`, opening the app raises SchemaError instead of migrating the schema. `executors`
        are your own, by the names that `executor=` takes beside "inline", "thread" and "process".
        """
        self.settings = settings(
            dsn, home=home, schema=schema, lease=lease, keep=keep, pooler=pooler, log_failures=log_failures
        )
        checked_schema(self.settings.schema)
        self.definitions = Definitions()
        self.executors = Executors(executors)
        self.telemetry = Telemetry()
        self.hooks = Hooks(self.telemetry)
        if self.settings.log_failures:
            self.telemetry.listen(failures_logged)
        self.portal = Portal(self)
        self._home = Home(self.settings.dsn, self.settings.schema)
        self._capture = checked_level(capture_logs)
        self._may_migrate = migrate
        self._openings: dict[asyncio.AbstractEventLoop, Opening] = {}
        self._doors: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._embedded: list[embedded.Embedded] = []
        self._doubted: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    # -- definitions by name, and hooks

    def definition(self, name: str) -> NamedDefinition:
        """Return the definition of this name, for code that does not import it.

        >>> run = await app.definition("shop.charge").options(priority=10).start(order=7, cents=1999)
        """
        known = self.definitions.get(name)
        return (
            NamedDefinition(self, name, Options())
            if known is None
            else NamedDefinition(self, name, known._options, known)
        )

    async def start(self, name: str, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a run by the name of its definition, without importing its code."""
        return await self.definition(name).start(*args, **kwargs)

    @overload
    def on(self, *names: RunEventName, timeout: Duration = 10) -> Callable[[RunHook], RunHook]: ...
    @overload
    def on(self, *names: WorkerEventName, timeout: Duration = 10) -> Callable[[WorkerHook], WorkerHook]: ...
    @overload
    def on(self, *names: EventName, timeout: Duration = 10) -> Callable[[AnyHook], AnyHook]: ...
    @refuse_unknown_options
    def on(self, *names: str, timeout: Duration = 10) -> Callable[[Any], Any]:
        """Register a hook: a function called with each event of these names, after the commit and at most once.

        An `async def` is called on the event loop, a `def` in a thread. After `timeout` the call is given up.

        >>> app = App()
        >>> @app.on("run.failed")
        ... async def told(event: RunEvent) -> None:
        ...     print(event.name, event.error)
        """
        checked_names(names)

        def register(fn: Any) -> Any:
            self.hooks.add(names, fn, timeout)
            return fn

        return register

    # -- runs

    @overload
    def run(self, id_or_key: UUID | str, /) -> Run[Any]: ...
    @overload
    def run(self, *, key: str) -> Run[Any]: ...
    def run(self, id_or_key: UUID | str | None = None, *, key: str | None = None) -> Run[Any]:
        """Return a handle on the run with this id or key. A text that looks like an id is taken for one; give `key=`
        otherwise."""
        if isinstance(id_or_key, UUID):
            return Run(self, id_or_key)
        if key is not None or id_or_key is None:
            return Run(self, None, key=checked_text("key", key, 500))
        try:
            return Run(self, UUID(id_or_key))
        except ValueError:
            return Run(self, None, key=id_or_key)

    async def runs(
        self,
        *,
        state: States = None,
        name: str | None = None,
        queue: str | None = None,
        kind: Kind | None = None,
        tags: Mapping[str, Any] | None = None,
        error: str | None = None,
        since: datetime | None = None,
        blocked: bool = False,
        limit: int = 50,
        after: UUID | str | None = None,
        within: Duration | None = None,
    ) -> Page:
        """Return one page of runs, newest first. Pass `page.next` as `after=` for the next page.

        `blocked=True` selects the workflows whose code does not fit their history. A filter that few runs match may
        have to scan all kept runs. Limit that by `since=`, or by `within=`: after that time the page has what was
        found, and `next` continues from there.

        >>> page = await app.runs(state="failed", queue="mail", limit=100)
        """
        return await self.operator.runs.list(
            state=state, name=name, queue=queue, kind=kind, tags=tags, error=error, since=since, blocked=blocked,
            limit=limit, after=after, within=within,
        )  # fmt: skip

    # -- queues

    def queue(self, name: str) -> Queue:
        """Return a handle on a queue: its limits, and whether it is paused."""
        return Queue(self, checked_text("queue", name, 100))

    async def queues(self) -> list[QueueInfo]:
        """Return every queue that has settings or live runs."""
        return await self.operator.queues.list()

    async def workers(self, ids: Sequence[UUID] | None = None) -> list[WorkerInfo]:
        """Return live workers first, then those that left or were lost in the last day; or the workers with these
        ids."""
        return await self.operator.workers.list(ids)

    @property
    def operator(self) -> Operator:
        """The verbs of operators: lists, bulk actions, queues, workers, doctor, preflight, statistics. They belong to
        the event loop on which the app is open."""
        return self._opening.operator

    # -- running

    async def __aenter__(self) -> Self:
        """Open the app on this event loop: connect, and migrate the schema if that is allowed."""
        loop = asyncio.get_running_loop()
        async with self._doors.setdefault(loop, asyncio.Lock()):
            if loop not in self._openings:
                self._openings[loop] = await self._open()
            self._openings[loop].users += 1
        return self

    async def __aexit__(self, *_error: object) -> None:
        loop = asyncio.get_running_loop()
        async with self._doors[loop]:
            opening = self._openings[loop]
            opening.users -= 1
            if opening.users:
                return
            try:
                try:
                    await self.hooks.close()  # before the rest: a hook may use the app
                finally:
                    del self._openings[loop]
                    await opening.close()
            finally:
                await asyncio.to_thread(self._let_go)

    async def _open(self) -> Opening:
        dsn, pooler = self.settings.dsn, self.settings.pooler
        if dsn is None:
            dsn, pooler = await asyncio.to_thread(self._embedded_dsn), False
        database = Database(dsn, self.settings.schema, pooler=pooler)
        try:
            await database.open()
            if self._may_migrate:
                await migrate.migrate(database)
            else:
                await migrate.require_current(database)
            self._home.opened(dsn, await namespace_of(database, self.settings.schema))
        except BaseException:
            await database.close()
            await asyncio.to_thread(self._let_go)
            raise
        wakes = PostgresWakes(database)
        self.hooks.open()
        for_clients = database.for_clients()
        client = Client(for_clients, wakes, self.telemetry)
        return Opening(database, wakes, client, Operator(Parts(self, for_clients, client, RunCode)))

    def _embedded_dsn(self) -> str:
        """Start the embedded server, and return its DSN. Each event loop holds it once; it stops when the last hold is
        released."""
        hold = embedded.ensure(self.settings.home)
        with self._lock:
            self._embedded.append(hold)
        return hold.dsn

    def _let_go(self) -> None:
        with self._lock:
            hold = self._embedded.pop() if self._embedded else None
        if hold is not None:
            hold.release()

    @refuse_unknown_options
    @asynccontextmanager
    async def worker(
        self, *, queues: Sequence[str] | None = None, slots: int = 100, grace: Duration = 0, name: str | None = None
    ) -> AsyncIterator[Worker]:
        """Run a worker in this process while the block lasts. After the block, attempts have `grace` to end.

        >>> async with app.worker(queues=["mail"], slots=20, grace="30s"):
        ...     await asyncio.Event().wait()
        """
        whole("slots", slots)
        patience = duration(grace, setting="grace").total_seconds()
        served = None if queues is None else checked_texts("queues", queues, 100)
        async with self, self.executors.opened(slots) as executors, _lending(self._opening.database) as lending:
            who = _identity(served, slots, name, self.definitions)
            worker, services = self._hire(who, executors, lending)
            async with in_background(services.run()), in_background(worker.run(), may_end=True):
                try:
                    yield worker
                finally:
                    await worker.stop(patience)
                    await worker.stopped()
                    await self.hooks.drain()

    def _hire(self, who: Identity, executors: Mapping[str, Executor], lending: Lending) -> tuple[Worker, Services]:
        database, wakes, lease = self._opening.database, self._opening.wakes, self.settings.lease
        telemetry = self.telemetry.about(worker=who)
        link = DirectLink(
            database, wakes, PostgresClaims(database), who, lease=lease, telemetry=telemetry, lending=lending
        )  # fmt: skip
        worker = Worker(
            link,
            Bodies(self.definitions.claimable, executors, self.hooks.around),
            telemetry,
            slots=who.slots,
            lease=lease,
            capture=self._capture,
        )
        parts = (
            Due(database, wakes, self.telemetry),
            Reaper(database, wakes, self.telemetry),
            Partitions(database, keep=self.settings.keep),
            Teller(database, wakes, self.telemetry),
        )
        own = (Unblock(database, wakes, who, ready=worker.ready.wait, found=worker.look),)
        return worker, Services(database, self.telemetry, parts, own=own, worker=who.id, lease=lease)

    @property
    def door(self) -> Door:
        """The verbs for definitions and handles of runs."""
        return self._opening.client

    def within(self, tx: object) -> InTransaction:
        """Return the verbs that run in a transaction of yours. The app need not be open for them."""
        return InTransaction(tx, self.settings.schema, self._home)

    @property
    def desk(self) -> Desk:
        """The verbs for handles of queues."""
        return self._opening.client

    @property
    def dsn(self) -> str:
        """DSN of the database in use."""
        return self._opening.database.dsn

    def decode_result(self, name: str, data: bytes) -> Any:
        """Decode a result, by the signature of its definition if that is known here."""
        known = self.definitions.get(name)
        return decode(data) if known is None else known.signature.decode_result(data)

    def doubt_signal(self, workflow: str | None, signal: str) -> None:
        """Log a warning, once, if the code of this workflow is known here and does not mention this signal."""
        if workflow is None or (workflow, signal) in self._doubted:
            return
        known = self.definitions.get(workflow)
        if isinstance(known, Workflow) and known.mentions is not None:
            doubt = known.mentions.doubt(workflow, signal)
            if doubt is not None and len(self._doubted) < MOST_DOUBTS:
                self._doubted.add((workflow, signal))
                log.warning("%s The signal was sent anyway.", doubt)

    @property
    def _opening(self) -> Opening:
        opening = self._openings.get(asyncio.get_running_loop())
        if opening is None and here() is not None:
            raise NotDurable("the app itself", line_of_user())
        if opening is None:
            raise WrongUse("the app is not open on this event loop: wrap the call in `async with app:`")
        return opening


@asynccontextmanager
async def _lending(database: Database) -> AsyncIterator[Lending]:
    """The connections for bodies that ask for a transaction of their own."""
    lending = Lending(database)
    try:
        yield lending
    finally:
        await lending.close()


def _identity(served: list[str] | None, slots: int, name: str | None, known: Definitions) -> Identity:
    host, pid = socket.gethostname(), os.getpid()
    names, versions = sorted(known.tasks), known.versions
    return Identity(new_worker_id(), name or f"{host}:{pid}", host, pid, VERSION, served, slots, names, versions)
