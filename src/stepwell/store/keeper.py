"""The keeper: the process that keeps an embedded Postgres running while it has users.

Every user of the server holds a shared lock on `clients.lock`. The keeper, which is the parent of the postmaster, tries
to lock that file exclusively; when this succeeds again and again for `linger` seconds, there are no users left, and it
stops the server. The kernel drops the locks of killed processes, so no count of users can go stale.

It is run by path under `python -I -S`: no package is imported, so it starts in milliseconds and cannot pick up modules
from the user's directories. It inherits the lock on `keeper.lock` from the process that starts it.
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
# Larger than every possible process id, so that Postgres takes the owner of the file for dead.
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
    """The account that runs the server when we are root, as Postgres refuses to run as root."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The directories of a cluster and the account that runs it, as recorded in `server.json` for other processes and
    people."""

    home: Path
    binaries: Path
    data: Path
    sockets: Path
    account: Account | None

    @classmethod
    def read(cls, home: Path) -> EmbeddedServer:
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
    """Return keyword arguments for subprocess that drop root, the caller's directory and its environment.

    The environment may hold secrets, and other processes of the account could read it.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    how: dict[str, Any] = {"cwd": "/", "env": {**kept, "LC_ALL": "C"}}
    if account:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return how


def give_to_owner(path: Path) -> None:
    """Give a file to the owner of its directory: root must not leave files in a user's project that lock that user
    out."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def touch(path: Path) -> None:
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        give_to_owner(path)


def is_ready(data: Path) -> bool:
    """Tell whether the postmaster's own status line says that it accepts connections."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"


def living_postmaster(data: Path) -> int | None:
    """Return the pid of a living postmaster of exactly this data directory.

    After a reboot the recorded pid may belong to another process, and where nobody reaps orphans it may be a zombie.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        state, command = _process(pid)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return pid if state != "Z" and b" -D " + os.fsencode(data) + b" " in command else None


def _process(pid: int) -> tuple[str, bytes]:
    """Return the state letter and the command line, with a space after each argument."""
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
        """Shut down fast; if that hangs, immediately, from which the next start recovers."""
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


def launch(server: EmbeddedServer) -> Postmaster:
    """Start the postmaster."""
    _clear_lock_files(server)
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


def _clear_lock_files(server: EmbeddedServer) -> None:
    """Make the lock files of a dead postmaster name no process.

    Postgres only checks whether the recorded pid exists, so that of another process or of a zombie would block the
    start for ever. The rest of the data directory's file stays as it is: by its shared memory key, Postgres refuses to
    start beside backends that outlived their postmaster.
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
        # The file may be empty after a power cut. Then it records nothing, but Postgres would refuse to start.
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
    """The loop that keeps the server running, and stops it when its last user is gone."""

    def __init__(self, server: EmbeddedServer, linger: float) -> None:
        self._server = server
        self._linger = linger
        self._clients = os.open(server.home / "clients.lock", os.O_RDONLY)
        self._told_to_stop = False
        self._was_ready = False

    def keep(self) -> None:
        """Run the server, and start it again whenever it dies, until it has no users or is told to stop."""
        deaths = 0
        while True:
            postmaster = self._adopt() or launch(self._server)
            if self._watch(postmaster):
                postmaster.stop()
                return
            deaths = deaths + 1 if time.monotonic() - postmaster.born < QUICK_DEATH else 1
            if self._told_to_stop or (self._was_ready and self._nobody_left()):
                return
            # Once the server has been ready, its users rely on a restart, however many attempts that takes.
            if not self._was_ready and deaths >= STARTS_BEFORE_GIVING_UP:
                sys.exit(f"the server stopped {deaths} times while it was starting")
            time.sleep(min(0.1 * 2**deaths, QUICK_DEATH))

    def stop(self, *_signal: object) -> None:
        self._told_to_stop = True

    def _adopt(self) -> Postmaster | None:
        pid = living_postmaster(self._server.data)
        return Postmaster(self._server.data, pid) if pid else None

    def _watch(self, postmaster: Postmaster) -> bool:
        """Watch the server. Return True when it must be stopped, False when it died."""
        alone_since: float | None = None
        while postmaster.alive():
            self._was_ready = self._was_ready or is_ready(self._server.data)
            if self._told_to_stop:
                return True
            if self._nobody_left():
                alone_since = alone_since or time.monotonic()
                if time.monotonic() - alone_since >= self._linger:
                    # The lock stays held: a new user waits for it until this server is down.
                    return True
                fcntl.flock(self._clients, fcntl.LOCK_UN)
            else:
                alone_since = None
            time.sleep(POLL)
        return False

    def _nobody_left(self) -> bool:
        """Tell whether there are no users. If so, the users' lock is held on return."""
        try:
            fcntl.flock(self._clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main(home: str, linger: str) -> None:
    # Become a child of init, not of the program that started us: that one need not reap the keeper, nor take it along.
    if os.fork():
        os._exit(0)
    keeper = Keeper(EmbeddedServer.read(Path(home)), float(linger))
    signal.signal(signal.SIGTERM, keeper.stop)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    keeper.keep()


if __name__ == "__main__":
    main(*sys.argv[1:])
