"""The servers of a benchmark: a Postgres and a Redis of its own, in a temporary directory, stopped in any case.

Both know the same three verbs. `restore` gives a store with what was kept under a name, `keep` keeps what is in it,
and `mark` tells how much the server has written so far.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from stepwell.store import binaries
from stepwell.store.keeper import Account, run_as

USER = "bench"
DATABASE = "bench"
OLD = "old"
PATIENCE = 60.0
# No checkpoint shall decide a round: each begins right after one, and the next is due long after its end.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_min_messages": "error",
    # Loaded but asleep: only the databases in which statements are counted turn it on.
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
# A new server makes the files of its log as it goes, and whoever commits then waits for 16 MB of zeros: 50 ms, in one
# measurement and not in the next. One that has lived for an hour has them already, and uses each again.
AGE = """
do $$ begin
    for number in 1 .. 128 loop
        perform pg_logical_emit_message(false, 'age', '');
        perform pg_switch_wal();
    end loop;
end $$
"""


def free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return int(asking.getsockname()[1])


class Server:
    """A process that is stopped when its `with` block ends, by the gentle signal and then by the other."""

    ending = signal.SIGTERM

    def __init__(self, place: Path) -> None:
        self.place = place
        self.child: subprocess.Popen[bytes] | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def launch(self, command: list[str], **how: object) -> None:
        """In a session of its own: Ctrl-C is for us, and we end it."""
        log = open(self.place / "log", "ab")  # noqa: SIM115 - the child's
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **how
        )  # type: ignore[call-overload]
        log.close()

    def stop(self) -> None:
        child, self.child = self.child, None
        if child is None:
            return
        child.send_signal(self.ending)
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def last_words(self) -> str:
        return (self.place / "log").read_bytes()[-1500:].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Held:
    """A database in which a transaction with a snapshot is open."""

    url: str
    since: float


class Postgres(Server):
    """One cluster; a database per measurement, copied from a template."""

    ending = signal.SIGINT

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._holders: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self.place.mkdir()
        self.place.chmod(0o755)
        account = _account()
        found = binaries.choose(set())
        if account and not binaries.runs_as(account, found):
            found = binaries.copied_to(self.place, found)
        self.binaries, self.version = found.directory, str(found.major)
        self.port, self.password = free_port(), secrets.token_hex(16)
        data = self._initialise(account)
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self.binaries / "postgres"), "-D", str(data), "-p", str(self.port), *options]
        self.launch(command, **run_as(account))
        try:
            self._await_ready()
            self.sql("create database empty", AGE, "checkpoint", database="postgres")
        except BaseException:
            self.stop()
            raise
        return self

    def _initialise(self, account: Account | None) -> Path:
        data, secret = self.place / "data", self.place / "password"
        secret.write_text(self.password)
        data.mkdir(mode=0o700)
        for path in (data, secret):
            if account:
                os.chown(path, account.uid, account.gid)
        command = [str(self.binaries / "initdb"), "-D", str(data), "-U", USER, "-E", "UTF8", "--locale=C"]
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        made = subprocess.run([*command, *options], capture_output=True, text=True, **run_as(account))
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stdout}{made.stderr}")
        return data

    def _await_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.sql("select 1", database="postgres")
                return
            except RuntimeError:
                assert self.child is not None
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Postgres did not start:\n{self.last_words()}") from None
                time.sleep(0.1)

    def dsn(self, database: str) -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def psql(self, database: str) -> list[str]:
        return [str(self.binaries / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.dsn(database)]

    def sql(self, *statements: str, database: str = DATABASE) -> str:
        """Each in a transaction of its own; the answers, a line per row."""
        command = [*self.psql(database), *(part for each in statements for part in ("-c", each))]
        said = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if said.returncode:
            raise RuntimeError(said.stderr.strip())
        return said.stdout.strip()

    def restore(self, whose: str, name: str) -> str:
        """Copied through the log: its pages are newer than the checkpoint, so the next to change them writes no more
        than the change. To drop a database is to make a checkpoint, so that none is due soon."""
        template = f"{whose}_{name}" if name else "empty"
        self.sql(
            f"drop database if exists {DATABASE} with (force)",
            f"create database {DATABASE} template {template} strategy wal_log",
            database="postgres",
        )
        return self.dsn(DATABASE)

    def keep(self, whose: str, name: str) -> None:
        """What the database holds becomes a template. Vacuumed, as a database that has lived for an hour is."""
        self.sql("vacuum analyze")
        self._quiet()
        self.sql(f"alter database {DATABASE} rename to {whose}_{name}", database="postgres")

    def hold(self, whose: str, name: str) -> Held:
        """A copy of the image, beside which a transaction stays open until the server ends. What it keeps from being
        cleaned away is in that database alone."""
        self.sql(f"create database {OLD} template {whose}_{name}", database="postgres")
        holder = subprocess.Popen(
            self.psql(OLD), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        self._holders.append(holder)
        holder.stdin.write("begin isolation level repeatable read;\nselect 'held' from pg_class limit 1;\n")
        holder.stdin.flush()
        if holder.stdout.readline().strip() != "held":
            raise RuntimeError("the transaction could not be opened")
        return Held(self.dsn(OLD), time.monotonic())

    def stop(self) -> None:
        while self._holders:
            with self._holders.pop() as holder:
                holder.kill()
        super().stop()

    def _quiet(self) -> None:
        self.sql(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{DATABASE}'",
            database="postgres",
        )
        deadline = time.monotonic() + 5
        question = f"select count(*) from pg_stat_activity where datname = '{DATABASE}'"
        while self.sql(question, database="postgres") != "0" and time.monotonic() < deadline:
            time.sleep(0.05)

    def mark(self) -> int:
        return int(self.sql("select pg_current_wal_insert_lsn() - '0/0'", database="postgres"))


class Redis(Server):
    """A process per measurement, begun from a kept image and writing its log from then on."""

    def __init__(self, place: Path, program: str) -> None:
        super().__init__(place)
        self.program = program
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        # Its own name too: Valkey stands in where there is no Redis, and the table must not call it one.
        self.version = " ".join([shown.split()[0], *(word[2:] for word in shown.split() if word.startswith("v="))])

    def __enter__(self) -> Self:
        (self.place / "kept").mkdir(parents=True)
        return self

    def restore(self, whose: str, name: str) -> str:
        self.stop()
        data = self.place / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        if name:
            shutil.copyfile(self.place / "kept" / f"{whose}_{name}.rdb", data / "dump.rdb")
        self.port = free_port()
        # Rewriting the log by itself would fall into one measurement and not into another.
        options = {
            "port": self.port, "bind": "127.0.0.1", "dir": data, "save": "", "appendfsync": "everysec",
            "auto-aof-rewrite-percentage": 0,
        }  # fmt: skip
        command = [self.program, *(str(part) for key, value in options.items() for part in (f"--{key}", value))]
        self.launch(command)
        self._await(lambda: self.ask("PING") == "+PONG")
        # Turned on only now: a server that starts with its log on does not read the image.
        self.ask("CONFIG SET appendonly yes")
        self._await(lambda: all(word in self.ask("INFO persistence") for word in _CALM))
        return f"redis://127.0.0.1:{self.port}/0"

    def keep(self, whose: str, name: str) -> None:
        self.ask("SAVE")
        shutil.copyfile(self.place / "data" / "dump.rdb", self.place / "kept" / f"{whose}_{name}.rdb")

    def mark(self) -> int:
        said = self.ask("INFO persistence").split()
        return int(next(line.split(":")[1] for line in said if line.startswith("aof_current_size:")))

    def ask(self, words: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as line:
            line.sendall(words.encode() + b"\r\n")
            with line.makefile("rb") as answer:
                head = answer.readline().decode().strip()
                if head.startswith("-LOADING"):
                    raise ConnectionError(head)
                if head.startswith("-"):
                    raise RuntimeError(head)
                return answer.read(int(head[1:])).decode() if head.startswith("$") else head

    def _await(self, ready: object) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if ready():  # type: ignore[operator]
                    return
            except OSError:
                pass
            if time.monotonic() > deadline or self.child is None or self.child.poll() is not None:
                raise RuntimeError(f"Redis did not start:\n{self.last_words()}")
            time.sleep(0.05)


_CALM = ("aof_enabled:1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0")


def _account() -> Account | None:
    """Postgres refuses to be root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise RuntimeError("Postgres does not run as root, and there is no account postgres or nobody")
