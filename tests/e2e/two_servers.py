"""A primary and its standby, two real servers on ports of this machine, to be killed and promoted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.store import binaries, cluster
from stepwell.store.keeper import Account, run_as

TRUST = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\nlocal all all trust\n"


class OneServer:
    def __init__(self, place: Path, programs: Path, account: Account | None) -> None:
        self.data = place
        self.port = free_port()
        self._programs = programs
        self._account = account

    def make(self) -> None:
        self.run("initdb", "-D", str(self.data), "-U", "app", "--no-sync", "--auth=trust")
        (self.data / "pg_hba.conf").write_text(TRUST)

    def copy(self, primary: OneServer) -> None:
        """Become a standby of it."""
        where = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "app", "-D", str(self.data))
        self.run("pg_basebackup", *where, "-R", "-X", "stream", "-c", "fast")

    def start(self, **settings: str) -> None:
        more = {"port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": "", **settings}
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in more.items())
        self.run("pg_ctl", "start", "-D", str(self.data), "-w", "-l", str(self.data / "log"))

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def kill(self) -> None:
        """The postmaster, without a word: its children follow it by themselves."""
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def refuse_writes(self) -> None:
        """Stay, with all that are connected, as a primary does that was told to step down."""
        self.set(default_transaction_read_only="on")

    def set(self, **settings: str) -> None:
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.run("pg_ctl", "reload", "-D", str(self.data))

    def stop(self) -> None:
        with suppress(RuntimeError):
            self.run("pg_ctl", "stop", "-D", str(self.data), "-m", "immediate", "-w")

    def run(self, program: str, *arguments: str) -> None:
        # To a file and not to a pipe: a server that it starts would keep the pipe open.
        with (self.data.parent / "said").open("w+b") as said:
            command = [str(self._programs / program), *arguments]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=60, **run_as(self._account)
            )  # fmt: skip
            said.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program}: {said.read().decode()}")


class TwoServers:
    def __init__(self, first: OneServer, second: OneServer) -> None:
        self.first, self.second = first, second

    @property
    def dsn(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (self.first, self.second))
        return f"postgresql://app@{hosts}/postgres?target_session_attrs=read-write"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def two_servers() -> Iterator[TwoServers]:
    """The second receives every commit of the first before that is answered."""
    place = Path(tempfile.mkdtemp(prefix="two-", dir="/tmp"))
    account = cluster._account(place) if os.geteuid() == 0 else None
    if account is not None:
        os.chown(place, account.uid, account.gid)
    found = binaries.choose(set())
    if account is not None and not binaries.runs_as(account, found):
        place.chmod(0o711)
        found = binaries.copied_to(place, found)
    first, second = (OneServer(place / name, found.directory, account) for name in ("first", "second"))
    try:
        first.make()
        first.start(fsync="off")
        second.copy(first)
        second.start(wal_retrieve_retry_interval="100ms", primary_conninfo=_at(first), fsync="off")
        first.set(synchronous_standby_names="*")
        yield TwoServers(first, second)
    finally:
        for each in (first, second):
            each.stop()
        shutil.rmtree(place, ignore_errors=True)


def _at(server: OneServer) -> str:
    return f"host=127.0.0.1 port={server.port} user=app"
