"""The embedded Postgres: a real server, started on first use and stopped when its last user is gone.

`ensure` finds, reuses, recovers or starts the server of a home directory. The keeper (keeper.py) stops it, cluster.py
decides where it lives, and binaries.py finds its programs.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from stepwell.model.errors import Unavailable
from stepwell.store import cluster, keeper

POLL = 0.02
LOG_TAIL = 1500
# Root's server runs under another account, which must be able to pass through the home to its own directories.
HOME_MODE = 0o711 if os.geteuid() == 0 else 0o700


@dataclass(slots=True)
class Embedded:
    """A user's hold on an embedded server.

    It lasts until `release` or the end of the process, even if this object is garbage-collected before.
    """

    dsn: str
    _hold: int | None = field(repr=False)

    def release(self) -> None:
        """Drop the hold. The server stops shortly after the last hold is dropped."""
        hold, self._hold = self._hold, None
        if hold is not None:
            # The file is closed, not unlocked: a forked child that shares the hold keeps it.
            os.close(hold)


def ensure(home: Path, *, linger: float = 2.0, timeout: float = 60.0) -> Embedded:
    """Return a hold on the running server of this home. Block until the server accepts connections, or raise
    Unavailable."""
    deadline = time.monotonic() + timeout
    home = _make_home(home)
    hold = _join(home, deadline)
    try:
        return Embedded(_reach(home, linger, deadline), hold)
    except BaseException:
        os.close(hold)
        raise


def exists(home: Path) -> bool:
    """Tell whether this home has an embedded database, running or not."""
    return (home / "server.json").exists() or any(home.glob("data-*"))


def _make_home(home: Path) -> Path:
    """Create the home directory and the files that every user of the server needs."""
    home = home.absolute()
    try:
        home.mkdir(mode=HOME_MODE, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise _no_home(home, error) from error
    home = home.resolve()
    try:
        for name in ("clients.lock", "keeper.lock", "keeper.log", "postgres.log"):
            keeper.touch(home / name)
        if not (home / ".gitignore").exists():
            (home / ".gitignore").write_text("*\n")
            keeper.give_to_owner(home / ".gitignore")
    except OSError as error:
        raise _no_home(home, error) from error
    return home


def _no_home(home: Path, error: OSError) -> Unavailable:
    where = error.filename or home
    return Unavailable(f"{where}: {error.strerror}; the embedded database needs a directory that you own")


def _join(home: Path, deadline: float) -> int:
    """Become a user of the server. Wait if it is just stopping because it had none."""
    while True:
        hold = _try_lock(home / "clients.lock", fcntl.LOCK_SH)
        if hold is not None:
            return hold
        if time.monotonic() > deadline:
            raise Unavailable(f"the embedded server in {home} is still stopping.{_last_words(home)}")
        time.sleep(POLL)


def _try_lock(path: Path, kind: int) -> int | None:
    """Lock a file without waiting. Return the open file, or None if somebody else has locked it."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; the embedded database belongs to another user") from error
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError as error:
        os.close(file)
        raise Unavailable(f"{path} cannot be locked ({error.strerror}): put the directory on a local disk") from error
    return file


def _reach(home: Path, linger: float, deadline: float) -> str:
    """Wait until the server accepts connections, and start its keeper if there is none. Return its DSN."""
    started = False
    while time.monotonic() < deadline:
        lock = _try_lock(home / "keeper.lock", fcntl.LOCK_EX)
        if lock is None:
            if dsn := _answering(home):
                return dsn
        else:
            try:
                # A death without a message is a kill from outside: try again. A failure with a message would only be
                # repeated.
                if started and (reason := _read_tail(home / "keeper.log")):
                    raise Unavailable(f"the embedded server did not start: {reason}{_last_words(home)}")
                _start_keeper(cluster.prepare(home, lock), linger, lock)
                started = True
            finally:
                os.close(lock)
        time.sleep(POLL)
    raise Unavailable(f"the embedded server in {home} was not ready in time.{_last_words(home)}")


def _answering(home: Path) -> str | None:
    """Return the DSN of the server that the keeper has published, if it accepts connections.

    The socket is probed, not the process table, so that it also works from another container.
    """
    try:
        server = keeper.EmbeddedServer.read(home)
        if not keeper.is_ready(server.data):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect(str(server.socket))
    except (OSError, ValueError, KeyError):
        return None
    return f"postgresql://{cluster.USER}@/{cluster.DATABASE}?host={quote(str(server.sockets))}&port={keeper.PORT}"


def _start_keeper(server: keeper.EmbeddedServer, linger: float, lock: int) -> None:
    """Start the keeper and hand it the keeper's lock. The open file is shared, so the lock is held without a gap."""
    with open(server.home / "keeper.log", "wb") as log:
        command = [sys.executable, "-I", "-S", keeper.__file__, str(server.home), str(linger)]
        detaching = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            **keeper.run_as(None),
        )
    detaching.wait()


def _last_words(home: Path) -> str:
    """Return the end of the server's log, for an error message."""
    tail = _read_tail(home / "postgres.log")
    return f"\nThe end of {home / 'postgres.log'}:\n{tail}\n" if tail else ""


def _read_tail(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""
