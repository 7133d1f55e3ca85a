from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import sys
from datetime import UTC, datetime

import pytest

from stepwell import current
from stepwell.definitions.run import Run
from stepwell.model.notes import LogLine
from stepwell.testing import Clock
from tests.factory import claimed, execute
from tests.waiting_for import hearing, until

# -- runs, show, start


async def test_runs_are_filtered_by_tags_errors_kinds_and_times(stepwell, client):
    define = client.definition("shop.add")
    acme = await define.options(tags={"tenant": "acme", "n": 3}).start(1)
    await define.options(tags={"tenant": "else", "n": "3"}).start(2)

    async def found(*arguments: object) -> list[str]:
        return [item["id"] for item in (await stepwell("runs", *arguments, "--json")).json["items"]]

    assert await found("--tag", "tenant=acme") == [str(acme.id)]
    assert await found("--tag", "n=3") == [str(acme.id)]
    assert await found("--tag", "tenant=acme", "--tag", "n=4") == []
    assert len(await found("--since", "1h", "--kind", "task")) == 2
    assert await found("--since", "2030-01-01") == []
    assert await found("--kind", "graph") == []
    assert await found("--error", "ValueError") == []
    assert (await stepwell("runs", "--tag", "tenant")).code == 2
    assert (await stepwell("runs", "--since", "sometime")).code == 2


async def test_start_takes_tags_and_may_be_unique(stepwell, client):
    arguments = ("start", "shop.add", "--input", "1", "--unique", "--tag", "tenant=acme", "--tag", "n=3")
    first, again = (await stepwell(*arguments)).out, (await stepwell(*arguments)).out
    assert first == again
    assert (await client.run(first.strip()).info()).tags == {"tenant": "acme", "n": 3}
    other = [(await stepwell("start", "shop.add", "--input", n, "--unique-by", "box")).out for n in (1, 2)]
    assert len({first, *other}) == 2


async def test_show_tells_where_attempts_ran_and_why_it_is_there(stepwell, app):
    async def add(n: int) -> int:
        return n

    task = app.task(name="add", limit_by=lambda n: f"key-{n}", deadline="1h")(add)
    run = await task.start(1)
    shown = (await stepwell("show", run.id, "--json")).json
    assert shown["limit_key"] == "key-1"
    assert shown["deadline_at"] is not None
    assert [each["code"] for each in shown["causes"]] == ["queue_not_served", "deadline"]
    said = await stepwell("show", run.id)
    assert "limit key key-1" in said.out
    assert "no worker is alive" in said.out
    async with app.worker(name="web1"):
        await run.result(10)
    (attempt,) = (await stepwell("show", run.id, "--json")).json["attempts"]
    assert attempt["pid"] == os.getpid()
    assert f"web1, host {attempt['host']}, pid {os.getpid()}" in (await stepwell("show", run.id)).out


# -- explain


async def test_explain_says_why(stepwell, client):
    run = await client.definition("shop.add").options(key="k").start(1)
    said = await stepwell("explain", "k")
    assert said.code == 0
    assert said.out.splitlines() == [
        f"{run.id} shop.add is pending", "  - no worker is alive: start `stepwell worker`",
    ]  # fmt: skip
    told = (await stepwell("explain", run.id, "--json")).json
    assert (told["state"], told["causes"][0]["code"]) == ("pending", "queue_not_served")
    assert (await stepwell("explain", "no-such-key")).code == 3


# -- workers, top, doctor


async def test_workers_are_listed(stepwell, app):
    with hearing(app, "worker.ready") as ready:
        async with app.worker(queues=["mail"], name="web1"):
            await ready.wait()
            (told,) = (await stepwell("workers", "--json")).json
            assert (told["name"], told["state"], told["queues"]) == ("web1", "live", ["mail"])
            assert 0 < told["lease_left"] <= 5
            said = await stepwell("workers")
            assert "web1" in said.out
            assert "mail" in said.out
    assert (await stepwell("workers", "--live", "--json")).json == []
    assert (await stepwell("workers", "--json")).json[0]["state"] == "stopped"


async def test_top_shows_all_of_it_once(stepwell, app):
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    task = app.task(name="wait")(wait)
    run = await task.start()
    async with app.worker(name="web1"):
        await until(lambda: _is_running(run))
        told = (await stepwell("top", "--once", "--json")).json
        said = await stepwell("top", "--once")
        go.set()
    assert [each["name"] for each in told["workers"]] == ["web1"]
    assert [each["id"] for each in told["running"]] == [str(run.id)]
    assert told["queues"][0]["running"] == 1
    assert told["starts_per_second"] > 0
    assert str(run.id) in said.out
    assert "1 running in 100 slots" in said.out


@pytest.mark.parametrize("command", [("top", "--every", "0.1"), ("runs", "--watch")])
async def test_what_is_watched_goes_on_until_interrupted_which_is_no_failure(process, client, command):
    run = await client.start("shop.add", 1)
    async with process(*command, "--json") as watching:
        first = json.loads((await watching.line(r"^\{")).string)
        assert str(run.id) in json.dumps(first) or first["queues"][0]["pending"] == 1
        await watching.line(r"^\{")
        watching.signal(signal.SIGINT)
        assert await watching.exit_code() == 0
    assert "Traceback" not in watching.output


async def test_top_tells_how_many_runs_finish(process, client):
    runs = await client.definition("shop.add").start_many([(n,) for n in range(20)])
    async with process("top", "--every", "0.1", "--json") as watching:
        first = json.loads((await watching.line(r"^\{")).string)
        assert first["finishes_per_second"] is None
        for run in runs:
            await run.cancel()
        await watching.line(r'"finishes_per_second": ?(?!0\.0[,}])\d')


class Terminal:
    """A command at a terminal, and what it has drawn there."""

    def __init__(self, dsn: str, *command: str) -> None:
        self._command = command
        self._env = {**os.environ, "STEPWELL_DSN": dsn, "COLUMNS": "200", "TERM": "xterm"}
        self.drawn = ""

    async def __aenter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stepwell", *self._command),
            env=self._env, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def until(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in self.drawn and await self._read():
                pass
        assert text in self.drawn

    async def exit_code(self) -> int:
        async with asyncio.timeout(20):
            while await self._read():
                pass
            return await self.process.wait()

    async def _read(self) -> bool:
        try:
            read = await asyncio.to_thread(os.read, self._ours, 10_000)
        except OSError:  # its other end is closed
            return False
        self.drawn += read.decode(errors="replace")
        return bool(read)


@pytest.mark.parametrize("command", [("top", "--every", "0.1"), ("runs", "--watch")])
async def test_a_terminal_is_drawn_on_until_ctrl_c(dsn, client, command):
    await client.definition("shop.add").options(queue="mailing").start(1)
    async with Terminal(dsn, *command) as terminal:
        await terminal.until("mailing")
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.exit_code() == 0
    assert "Traceback" not in terminal.drawn


async def test_at_a_terminal_many_runs_are_asked_about_and_counted_as_they_go(dsn, client):
    await client.definition("shop.add").start_many([(n,) for n in range(1200)])
    async with Terminal(dsn, "cancel", "--name", "shop.add") as terminal:
        await terminal.until("This will cancel 1,200 runs: name shop.add. Go on? [y/N]")
        terminal.type("y\n")
        assert await terminal.exit_code() == 0
    assert "1200/1200" in terminal.drawn
    assert "1,200 cancelled" in terminal.drawn


async def test_doctor_looks_at_vacuum_leases_services_and_what_is_late(stepwell, client, app, dsn):
    await client.definition("shop.add").options(delay="1m").start(1)
    await Clock(dsn).skip("1h")
    told = {each["subject"]: each for each in (await stepwell("doctor", "--json")).json["findings"]}
    assert {"connection", "server", "clock", "schema", "autovacuum", "leases", "services", "due"} <= told.keys()
    assert told["due"]["verdict"] == "bad"
    assert "1 due" in told["due"]["says"]
    assert told["services"]["verdict"] == "look"
    assert told["autovacuum"]["verdict"] == "good"
    async with app.worker():
        await until(lambda: _is_good(stepwell, "due", "services", "leases", "workers"))


async def test_doctor_tells_of_a_server_that_is_too_old(stepwell, monkeypatch):
    monkeypatch.setattr("stepwell.store.migrate.OLDEST_POSTGRES", 99)
    said = await stepwell("doctor", "--json")
    (server,) = (each for each in said.json["findings"] if each["subject"] == "server")
    assert (said.code, server["verdict"]) == (1, "bad")
    assert server["says"].endswith("and 99 or newer is needed")


async def test_doctor_finds_claims_that_nobody_reaps(stepwell, database, dsn):
    await claimed(database)
    await Clock(dsn).skip("10m", workers_live_on=False)
    told = {each["subject"]: each for each in (await stepwell("doctor", "--json")).json["findings"]}
    assert told["leases"]["verdict"] == "bad"
    assert "1 runs are held by 1 workers" in told["leases"]["says"]


async def test_doctor_tells_which_worker_cannot_record_outcomes_and_why(stepwell, app, database, monkeypatch):
    monkeypatch.setattr("stepwell.worker.lease.SAMPLE", 0.05)
    monkeypatch.setattr("stepwell.worker.unrecorded.MOST", 0.5)
    connection = await database.connect()
    await connection.execute(
        "create function refuse() returns trigger language plpgsql as 'begin raise check_violation using "
        "message = ''no room''; end'; create trigger refuse before insert on stepwell.finished_runs "
        "for each row execute function refuse()"
    )

    @app.task(name="odd")
    async def odd() -> None: ...

    async def outcomes():
        findings = (await stepwell("doctor", "--json")).json["findings"]
        return [each for each in findings if each["subject"] == "outcomes"]

    async def is_bad():
        (found,) = await outcomes()
        return found if found["verdict"] == "bad" else None

    async with app.worker(name="web1"):
        assert (await outcomes())[0]["verdict"] == "good"
        run = await odd.start()
        said = (await until(is_bad))["says"]
        assert re.match(r"worker web1 cannot record 1 outcome, since \d{4}-\d\d-\d\d .* UTC: ", said)
        assert "CheckViolationError: no room" in said
        await connection.execute(
            "create or replace function refuse() returns trigger language plpgsql as 'begin return new; end'"
        )
        await run.result(30)
        await until(lambda: _is_good(stepwell, "outcomes"))
    await connection.close()


async def test_doctor_finds_workflows_that_were_not_told_what_they_wait_for(stepwell, database, app):
    @app.task(name="remote", queue="nobody")
    async def remote() -> None: ...

    @app.workflow(name="asking")
    async def asking() -> None:
        await remote()

    async with app.worker(queues=["default"]):
        run = await asking.start()
        await until(lambda: _waits(run))
        assert await _is_good(stepwell, "workflows")
        async with database.transaction() as tx:
            await execute(tx, "delete from stepwell.runs where name = 'remote'")
        told = {each["subject"]: each for each in (await stepwell("doctor", "--json")).json["findings"]}
        assert told["workflows"]["verdict"] == "look"
        assert f"1 wait for a run that ended or is gone, and were never told: {run.id}" in told["workflows"]["says"]


async def _waits(run: Run) -> bool:
    return (await run.info()).state == "waiting"


# -- logs

LINES = [
    LogLine(1, datetime(2026, 11, 16, 3, tzinfo=UTC), "INFO", "shop", "first"),
    LogLine(2, datetime(2026, 11, 16, 4, tzinfo=UTC), "ERROR", "shop", "second\x1b[31m\nthird"),
]


@pytest.fixture
def written(monkeypatch):
    lines = list(LINES)

    async def logs(self: Run, attempt: int | None = None) -> list[LogLine]:
        return [line for line in lines if attempt is None or line.attempt == attempt]

    monkeypatch.setattr(Run, "logs", logs)
    return lines


async def test_logs_are_printed_for_people_and_programs(stepwell, client, written):
    run = await client.start("shop.add", 1)
    said = await stepwell("logs", run.id)
    assert said.code == 0
    assert "shop: first" in said.out
    assert "\x1b" not in said.out
    assert said.out.splitlines()[-1] == "  │ third"
    told = [json.loads(line) for line in (await stepwell("logs", run.id, "--json")).out.splitlines()]
    assert [each["message"] for each in told] == [line.message for line in LINES]
    assert "first" not in (await stepwell("logs", run.id, "--attempt", 2)).out
    assert (await stepwell("logs", "no-such-key")).code == 3


async def test_logs_and_progress_of_a_real_run_are_shown(stepwell, app):
    async def count() -> None:
        logging.getLogger("shop.count").warning("ten of them")
        current.progress("rows", done=10, total=100)

    run = await app.task(name="count")(count).start()
    async with app.worker():
        await run.result(10)
        await until(run.logs)
        await until(run.progress)
    assert "shop.count: ten of them" in (await stepwell("logs", run.id)).out
    assert "progress  rows 10 of 100" in (await stepwell("show", run.id)).out
    assert (await stepwell("show", run.id, "--json")).json["progress"][0]["done"] == 10


async def test_logs_are_followed_to_the_end_of_the_run_each_line_once(stepwell, client, written, monkeypatch):
    monkeypatch.setattr("stepwell.cli.run_logs.LOOK", 0.01)
    run = await client.start("shop.add", 1)
    following = asyncio.create_task(stepwell("logs", run.id, "--follow"))
    await asyncio.sleep(0.1)
    written.append(LogLine(2, datetime(2026, 11, 16, 5, tzinfo=UTC), "INFO", "shop", "last"))
    await run.cancel()
    said = await following
    assert [word for word in ("first", "second", "last") if said.out.count(word) == 1] == ["first", "second", "last"]


async def _is_running(run: Run) -> bool:
    return (await run.info()).state == "running"


async def _is_good(stepwell, *subjects: str) -> bool:
    found = {each["subject"]: each["verdict"] for each in (await stepwell("doctor", "--json")).json["findings"]}
    return all(found[subject] == "good" for subject in subjects)
