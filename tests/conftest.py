"""Fixtures: one embedded server for the whole session, shared by all its processes; and on it

tx        a real transaction, rolled back: most tests
dsn       a database of the test's own, in the state of a migrated template: for LISTEN, or two connections
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepwell import App
from stepwell.store import embedded, migrate
from stepwell.store.pool import Database, Transaction
from stepwell.worker.direct import DirectLink
from tests.shelf import Shelf, on_server, sibling
from tests.worker.coded_link import CodedLink


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests that take minutes")


def pytest_configure() -> None:
    """Let child processes hear Ctrl-C, also where the suite was started with SIGINT ignored (`&`, some CI runners).

    A child inherits that a signal is ignored, but not its handler: with one that does nothing, the suite itself
    ignores SIGINT as before.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        kept = [item for item in items if "soak" not in item.keywords]
        config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
        items[:] = kept


def as_role(dsn: str, role: str) -> str:
    """The DSN of the same database for another role, whose password is x."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}:x@{parts.netloc.rpartition('@')[2]}"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a running server: TEST_DATABASE_URL if it is set, else the embedded one."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield given
        return
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    state = shared_state(shared)
    os.environ.setdefault("STEPWELL_STATE", str(state))
    hold = embedded.ensure(shared / "server", linger=1.0)
    yield hold.dsn
    hold.release()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(state, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under xdist the last to leave is the controller, which never had the server itself."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if "PYTEST_XDIST_WORKER" not in os.environ and factory is not None and session.config.getoption("-n", None):
        shutil.rmtree(shared_state(factory.getbasetemp()), ignore_errors=True)


def shared_state(shared: Path) -> Path:
    """Where root's embedded server keeps its cluster: away from the machine's own state."""
    return Path("/tmp") / f"stepwell-tests-{uuid.uuid5(uuid.NAMESPACE_URL, str(shared)).hex[:12]}"


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a migrated database to copy from, made once in each test process."""
    name = f"template_{uuid.uuid4().hex[:12]}"

    async def make() -> None:
        await on_server(server, f"create database {name}")
        database = Database(sibling(server, name), "stepwell")
        await migrate.migrate(database)

    asyncio.run(make())
    yield name
    asyncio.run(on_server(server, f"drop database if exists {name} with (force)"))


@pytest.fixture(scope="session")
def shelf(server: str, template: str) -> Iterator[Shelf]:
    shelf = Shelf(server, template)
    yield shelf
    asyncio.run(shelf.clear())


@pytest.fixture
async def dsn(server: str, shelf: Shelf) -> AsyncIterator[str]:
    name = await shelf.take()
    yield sibling(server, name)
    await shelf.give_back(name)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    database = Database(dsn, "stepwell")
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def tx(server: str, template: str) -> AsyncIterator[Transaction]:
    database = Database(sibling(server, template), "stepwell")
    connection = await database.connect()
    transaction = connection.transaction()
    await transaction.start()
    yield Transaction(connection, database.statements)
    await transaction.rollback()
    await connection.close()


CODED = {
    "tests.inside.test_checkpoints",
    "tests.worker.test_locked_runs",
    "tests.worker.test_unrecorded_outcomes",
    "tests.worker.test_watching",
    "tests.workflows.test_step_transactions",
    "tests.workflows.test_steps",
    "tests.workflows.test_turns",
}
"""Files whose tests run twice: also with workers whose link encodes and decodes every call."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in CODED:
        metafunc.parametrize("link", ["direct", "coded"], indirect=True)


@pytest.fixture
def through_coded_links(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Have workers of this process ask through coded links; the answer gets the names of the verbs they call."""

    def ask(*, lends: bool = True) -> list[str]:
        calls: list[str] = []

        def made(*given: Any, **named: Any) -> CodedLink:
            return CodedLink(DirectLink(*given, **named), calls=calls, lends=lends)

        monkeypatch.setattr("stepwell.app.DirectLink", made)
        return calls

    return ask


@pytest.fixture(autouse=True)
def link(request: pytest.FixtureRequest) -> None:
    """How workers ask the system: directly, or with every call encoded and decoded."""
    if getattr(request, "param", "direct") == "coded":
        request.getfixturevalue("through_coded_links")()


@pytest.fixture
def only_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks of their own accord for a minute: what happens before was heard of, on a slow machine too."""
    for pause in (
        "worker.claiming.lanes.POLL",
        "worker.claiming.watch.WATCH",
        "worker.claiming.watch.WATCH_ALL",
        "client.result_waiter.POLL",
        "services.due.LOOK",
    ):
        monkeypatch.setattr(f"stepwell.{pause}", 60.0)


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """An open app on a database of its own."""
    app = App(dsn, lease=5)
    async with app:
        yield app
