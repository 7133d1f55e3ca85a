"""Makes an embedded cluster ready to be served: where it lives, whose it is, and its first initdb.

An ordinary user's cluster is in the home. Root cannot run Postgres: there an unprivileged account does, and
if it cannot enter the home, the cluster lives in a state directory of ours. Modes of others stay as they are.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from stepwell.model.errors import Unavailable
from stepwell.store import binaries
from stepwell.store.binaries import Binaries
from stepwell.store.keeper import PORT, Account, Server, run_as

USER = "stepwell"
DATABASE = "stepwell"
STATE = "/var/lib/stepwell"
ACCOUNTS = ("postgres", "nobody")
# The shortest limit among the systems we know (macOS), without the closing NUL.
SOCKET_PATH_LIMIT = 103


def prepare(home: Path, lock: int) -> Server:
    """Find or make the cluster of this home. The caller holds the keeper's lock, open as `lock`."""
    root, account = _locate(home)
    majors = {int(data.name.removeprefix("data-")) for data in _clusters(root)}
    chosen = _reachable(binaries.choose(majors), account)
    data = root / f"data-{chosen.major}"
    if not data.exists():
        _initialise(data, chosen, account, lock)
    server = Server(home, chosen.directory, data, _sockets(root, account), account)
    server.write()
    return server


def _reachable(chosen: Binaries, account: Account | None) -> Binaries:
    if account is None or binaries.runs_as(account, chosen):
        return chosen
    copied = binaries.copied_to(_state(account), chosen)
    if not binaries.runs_as(account, copied):
        raise Unavailable(f"the server's account (uid {account.uid}) cannot run {copied.directory}/postgres")
    return copied


def _clusters(root: Path) -> list[Path]:
    return sorted(data for data in root.glob("data-*") if data.name.removeprefix("data-").isdigit())


def _locate(home: Path) -> tuple[Path, Account | None]:
    """The directory for the cluster and the account to run it; where there is a cluster, they are given."""
    if os.geteuid() != 0:
        return home, None
    for root in (home, _recorded(home)):
        if root and (clusters := _clusters(root)):
            owner = clusters[0].stat()
            return root, Account(owner.st_uid, owner.st_gid)
    account = _account(home)
    if _can_enter(home, account):
        return home, account
    # Not by the home's name alone: who deletes a home, or moves it and begins another, wants an empty one.
    root = Path(tempfile.mkdtemp(prefix=f"{_digest(home)}-", dir=_state(account)))
    root.chmod(0o711)
    (root / "home").write_text(str(home))
    return root, account


def _recorded(home: Path) -> Path | None:
    """The cluster that this home had elsewhere, unless it was copied here from a home that still exists."""
    try:
        root = Server.read(home).data.parent
        owner = Path((root / "home").read_text())
    except (OSError, ValueError, KeyError):
        return None
    if owner != home:
        if owner.exists():
            return None
        (root / "home").write_text(str(home))
    return root


def _account(home: Path) -> Account:
    """Whose server it will be: the home's owner's, else an account that every system has."""
    owner = home.stat()
    if owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise Unavailable(f"Postgres does not run as root, and there is no account {' or '.join(ACCOUNTS)}")


def _can_enter(path: Path, account: Account) -> bool:
    for step in (path, *path.parents):
        facts = step.stat()
        if facts.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif facts.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not facts.st_mode & needed:
            return False
    return True


def _state_path() -> Path:
    return Path(os.environ.get("STEPWELL_STATE") or STATE).absolute()


def _state(account: Account) -> Path:
    path = directory(_state_path(), 0o711, None)
    if not _can_enter(path.resolve(), account):
        raise Unavailable(
            f"the server's account (uid {account.uid}) cannot enter {path}: "
            "set STEPWELL_STATE to a directory that it can"
        )
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def directory(path: Path, mode: int, account: Account | None) -> Path:
    """Make a directory of ours, or check that the one there is."""
    owner = account.uid if account else os.geteuid()
    try:
        path.mkdir(parents=True)
        path.chmod(mode)
        if account:
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"cannot make {path}: {error.strerror}") from error
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner or facts.st_mode & 0o022:
        raise Unavailable(f"{path} is not a directory that only uid {owner} can write to: move it away")
    return path


def _sockets(root: Path, account: Account | None) -> Path:
    """The socket's directory: beside the data, else where its path is short enough for the kernel."""
    near = root / "sockets"
    if _fits(near):
        return directory(near, 0o700, account)
    name = f"sockets-{_digest(root)}"
    if account:
        return directory(_state(account) / name, 0o700, account)
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if _is_private(runtime) and _fits(runtime / name):
        return directory(runtime / name, 0o700, None)
    return directory(directory(Path(f"/tmp/stepwell-{os.geteuid()}"), 0o700, None) / name, 0o700, None)


def _fits(sockets: Path) -> bool:
    """Drivers and Postgres split lists of hosts at commas."""
    path = os.fsencode(sockets / f".s.PGSQL.{PORT}.lock")
    return len(path) <= SOCKET_PATH_LIMIT and not set(b',"') & set(path)


def _is_private(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


def _initialise(data: Path, chosen: Binaries, account: Account | None, lock: int) -> None:
    """Made aside and renamed, database and all, so that a crash never leaves half a cluster."""
    draft = data.with_name(data.name + ".init")
    for locale in _locales(chosen.major):
        shutil.rmtree(draft, ignore_errors=True)
        directory(draft, 0o700, account)
        initdb = [
            str(chosen.directory / "initdb"),
            "-D",
            str(draft),
            "-U",
            USER,
            "-E",
            "UTF8",
            "--auth=trust",
        ]
        made = _run([*initdb, *locale], account, lock)
        if made.returncode == 0:
            break
    else:
        raise Unavailable(f"initdb could not make {data}:\n{made.stdout}")
    single = [str(chosen.directory / "postgres"), "--single", "-D", str(draft), "-c", "exit_on_error=on"]
    created = _run([*single, "postgres"], account, lock, f"CREATE DATABASE {DATABASE}\n")
    if created.returncode:
        raise Unavailable(f"the database {DATABASE} could not be made in {data}:\n{created.stdout}")
    draft.rename(data)


def _locales(major: int) -> tuple[list[str], ...]:
    """Sorting by code point and UTF-8 letters, on every machine alike."""
    if major >= 17:
        return (["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"],)
    return (["--locale=C.UTF-8"], ["--locale=C"])


def _run(command: list[str], account: Account | None, lock: int, text: str = "") -> subprocess.CompletedProcess[str]:
    """The child shares the keeper's lock: if we are killed, nobody begins anew while it still writes."""
    return subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=(lock,),
        **run_as(account),
    )
