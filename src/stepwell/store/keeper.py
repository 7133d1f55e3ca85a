"""The process that keeps an embedded Postgres running for as long as somebody uses it.

Every user of the server holds a shared lock on `clients.lock`. The keeper, parent of the postmaster, asks
for that lock exclusively; when it gets it again and again for `linger` seconds, nobody is left and it stops
the server. The kernel drops the locks of killed processes, so no count of users can go stale.

Run by path under `python -I -S`: no package is imported, so it starts in milliseconds and cannot pick up
modules from the user's directories. It inherits the lock on `keeper.lock` from the process that starts it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

PORT = 5432
POLL = 0.1
STOP_PATIENCE = 60.0
STARTS_BEFORE_GIVING_UP = 3
QUICK_DEATH = 5.0
LOG_LIMIT = 10 * 1024 * 1024
# Above every possible process id, so that Postgres takes the owner of the file for dead.
NO_PROCESS = 2**31 - 1
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "fsync": "on",
    "synchronous_commit": "on",
}


@dataclass(frozen=True, slots=True)
class Account:
    """Who the server runs as when we are root, which Postgres refuses to be."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Server:
    """Where a cluster lives and what runs it; `server.json` tells other processes, and people."""

    home: Path
    binaries: Path
    data: Path
    sockets: Path
    account: Account | None

    @classmethod
    def read(cls, home: Path) -> Server:
        facts = json.loads((home / "server.json").read_text())
        account = Account(*facts["account"]) if facts["account"] else None
        paths = {name: Path(facts[name]) for name in ("home", "binaries", "data", "sockets")}
        return cls(**paths, account=account)

    def write(self) -> None:
        facts: dict[str, Any] = {name: str(getattr(self, name)) for name in ("home", "binaries", "data", "sockets")}
        facts["account"] = [self.account.uid, self.account.gid] if self.account else None
        draft = self.home / "server.json.new"
        draft.write_text(json.dumps(facts, indent=2) + "\n")
        give_to_owner(draft)
        draft.rename(self.home / "server.json")

    @property
    def socket(self) -> Path:
        return self.sockets / f".s.PGSQL.{PORT}"


def run_as(account: Account | None) -> dict[str, Any]:
    """Keyword arguments for subprocess that give up root, the caller's directory and its environment.

    The environment may hold secrets, and other processes of the account could read it.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    how: dict[str, Any] = {"cwd": "/", "env": {**kept, "LC_ALL": "C"}}
    if account:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return how


def give_to_owner(path: Path) -> None:
    """In a user's project root must not leave files that lock that user out."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def touch(path: Path) -> None:
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        give_to_owner(path)


def is_ready(data: Path) -> bool:
    """Whether the postmaster's own status line says that it takes connections."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"


def living_postmaster(data: Path) -> int | None:
    """The pid of a living postmaster of exactly this data directory.

    After a reboot the recorded pid may be a stranger's, and where nobody reaps orphans it may be a zombie's.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        state, command = _process(pid)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return pid if state != "Z" and b" -D " + os.fsencode(data) + b" " in command else None


def _process(pid: int) -> tuple[str, bytes]:
    """State letter and command line, the arguments each followed by a space."""
    proc = Path("/proc", str(pid))
    if Path("/proc/self").exists():
        state = (proc / "stat").read_text().rpartition(")")[2].split()[0]
        return state, (proc / "cmdline").read_bytes().replace(b"\0", b" ")
    shown = subprocess.run(["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, check=True)
    letters, _, command = shown.stdout.strip().partition(b" ")
    return letters[:1].decode(), command + b" "


class Postmaster:
    """A server process: our own child, or one that outlived its keeper."""

    def __init__(self, data: Path, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self._data = data
        self._pid = pid
        self._child = child
        self.born = time.monotonic()

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return living_postmaster(self._data) == self._pid

    def stop(self) -> None:
        """Fast shutdown; if that hangs, the immediate one, from which the next start recovers."""
        self._signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_PATIENCE
        while self.alive():
            if time.monotonic() > deadline:
                self._signal(signal.SIGQUIT)
            time.sleep(POLL / 5)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            pass


def launch(server: Server) -> Postmaster:
    _disown(server)
    options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    place = ["-D", str(server.data), "-k", str(server.sockets), "-p", str(PORT)]
    with _open_log(server.home) as log:
        child = subprocess.Popen(
            [str(server.binaries / "postgres"), *place, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **run_as(server.account),
        )
    return Postmaster(server.data, child.pid, child)


def _disown(server: Server) -> None:
    """Make the lock files of a dead postmaster name nobody.

    Postgres checks only whether the recorded pid exists, so a stranger's or a zombie's would block the start
    for ever. The data directory's file stays otherwise as it is: its shared memory key is how Postgres
    refuses to start beside backends that outlived their postmaster.
    """
    record = server.data / "postmaster.pid"
    try:
        pid, rest = record.read_text().split("\n", 1)
        int(pid)
        with record.open("r+") as file:
            file.write(f"{NO_PROCESS}\n{rest}")
            file.truncate()
    except FileNotFoundError:
        pass
    except ValueError:
        # Empty after a power cut: it records nothing, and Postgres would refuse to start.
        record.unlink()
    server.socket.unlink(missing_ok=True)
    server.socket.with_name(server.socket.name + ".lock").unlink(missing_ok=True)


def _open_log(home: Path) -> BinaryIO:
    path = home / "postgres.log"
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(home / "postgres.log.1")
    touch(path)
    return path.open("ab")


class Keeper:
    def __init__(self, server: Server, linger: float) -> None:
        self._server = server
        self._linger = linger
        self._clients = os.open(server.home / "clients.lock", os.O_RDONLY)
        self._told_to_stop = False
        self._was_ready = False

    def keep(self) -> None:
        deaths = 0
        while True:
            postmaster = self._adopt() or launch(self._server)
            if self._watch(postmaster):
                postmaster.stop()
                return
            deaths = deaths + 1 if time.monotonic() - postmaster.born < QUICK_DEATH else 1
            if self._told_to_stop or (self._was_ready and self._nobody_left()):
                return
            # Once it has served, its users rely on it coming back, however long that takes.
            if not self._was_ready and deaths >= STARTS_BEFORE_GIVING_UP:
                sys.exit(f"the server stopped {deaths} times while starting")
            time.sleep(min(0.1 * 2**deaths, QUICK_DEATH))

    def stop(self, *_signal: object) -> None:
        self._told_to_stop = True

    def _adopt(self) -> Postmaster | None:
        pid = living_postmaster(self._server.data)
        return Postmaster(self._server.data, pid) if pid else None

    def _watch(self, postmaster: Postmaster) -> bool:
        """True when the server shall stop, False when it died."""
        alone_since: float | None = None
        while postmaster.alive():
            self._was_ready = self._was_ready or is_ready(self._server.data)
            if self._told_to_stop:
                return True
            if self._nobody_left():
                alone_since = alone_since or time.monotonic()
                if time.monotonic() - alone_since >= self._linger:
                    # The lock stays held: a newcomer waits for it until this server is down.
                    return True
                fcntl.flock(self._clients, fcntl.LOCK_UN)
            else:
                alone_since = None
            time.sleep(POLL)
        return False

    def _nobody_left(self) -> bool:
        """Takes the users' lock if that is so."""
        try:
            fcntl.flock(self._clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main(home: str, linger: str) -> None:
    # A child of init, not of the program that came first: that one need not reap us, nor take us along.
    if os.fork():
        os._exit(0)
    keeper = Keeper(Server.read(Path(home)), float(linger))
    signal.signal(signal.SIGTERM, keeper.stop)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    keeper.keep()


if __name__ == "__main__":
    main(*sys.argv[1:])
