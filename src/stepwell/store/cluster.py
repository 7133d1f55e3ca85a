"""Prepares the cluster of the embedded server: its directory, the account that owns it, and its first initdb.

An ordinary user's cluster is in the home directory. Postgres refuses to run as root, so for root an unprivileged
account runs it; if that account cannot enter the home, the cluster lives in a state directory of ours. The modes of
other directories are never changed.
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
from stepwell.store.keeper import PORT, Account, EmbeddedServer, run_as

USER = "stepwell"
DATABASE = "stepwell"
STATE = "/var/lib/stepwell"
ACCOUNTS = ("postgres", "nobody")
# The shortest limit among the systems we know (macOS), without the closing NUL.
SOCKET_PATH_LIMIT = 103


def prepare(home: Path, lock: int) -> EmbeddedServer:
    """Find or create the cluster of this home. The caller holds the keeper's lock, open as `lock`."""
    root, account = _locate(home)
    majors = {int(data.name.removeprefix("data-")) for data in _clusters(root)}
    chosen = _reachable(binaries.choose(majors), account)
    data = root / f"data-{chosen.major}"
    if not data.exists():
        _initialise(data, chosen, account, lock)
    server = EmbeddedServer(home, chosen.directory, data, _sockets(root, account), account)
    server.write()
    return server


def _reachable(chosen: Binaries, account: Account | None) -> Binaries:
    """Return binaries that the account can run: these, or a copy of them."""
    if account is None or binaries.runs_as(account, chosen):
        return chosen
    copied = binaries.copied_to(_state(account), chosen)
    if not binaries.runs_as(account, copied):
        raise Unavailable(f"the server's account (uid {account.uid}) cannot run {copied.directory}/postgres")
    return copied


def _clusters(root: Path) -> list[Path]:
    """Return the data directories under `root`."""
    return sorted(data for data in root.glob("data-*") if data.name.removeprefix("data-").isdigit())


def _locate(home: Path) -> tuple[Path, Account | None]:
    """Return the cluster's directory and the account that runs it: those of the existing cluster, if there is one."""
    if os.geteuid() != 0:
        return home, None
    for root in (home, _recorded(home)):
        if root and (clusters := _clusters(root)):
            owner = clusters[0].stat()
            return root, Account(owner.st_uid, owner.st_gid)
    account = _account(home)
    if _can_enter(home, account):
        return home, account
    # The name is not derived from the home alone: a user who deletes a home, or moves it and creates another, expects
    # an empty one.
    root = Path(tempfile.mkdtemp(prefix=f"{_digest(home)}-", dir=_state(account)))
    root.chmod(0o711)
    (root / "home").write_text(str(home))
    return root, account


def _recorded(home: Path) -> Path | None:
    """Return the directory of the cluster that this home has elsewhere, unless the record was copied from a home that
    still exists."""
    try:
        root = EmbeddedServer.read(home).data.parent
        owner = Path((root / "home").read_text())
    except (OSError, ValueError, KeyError):
        return None
    if owner != home:
        if owner.exists():
            return None
        (root / "home").write_text(str(home))
    return root


def _account(home: Path) -> Account:
    """Return the account for a new server: the home's owner, else an account that every system has."""
    owner = home.stat()
    if owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise Unavailable(
        f"Postgres does not run as root, and this system has no account {' or '.join(ACCOUNTS)} to run it: "
        "create one, or use another database"
    )


def _can_enter(path: Path, account: Account) -> bool:
    """Tell whether the account may enter this directory and all of its parents."""
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
    """Return our state directory, created if needed."""
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
    """Create a directory of ours, or check that the existing one is safe to use."""
    owner = account.uid if account else os.geteuid()
    try:
        path.mkdir(parents=True)
        path.chmod(mode)
        if account:
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"cannot create {path}: {error.strerror}") from error
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner or facts.st_mode & 0o022:
        raise Unavailable(f"{path} is not a directory that only uid {owner} can write to: move it away")
    return path


def _sockets(root: Path, account: Account | None) -> Path:
    """Return the directory of the socket: beside the data, else where its path is short enough for the kernel."""
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
    """Tell whether a socket's path is short enough, and free of commas, at which drivers and Postgres split lists of
    hosts."""
    path = os.fsencode(sockets / f".s.PGSQL.{PORT}.lock")
    return len(path) <= SOCKET_PATH_LIMIT and not set(b',"') & set(path)


def _is_private(path: Path) -> bool:
    """Tell whether only this user can enter the directory."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


def _initialise(data: Path, chosen: Binaries, account: Account | None, lock: int) -> None:
    """Run initdb and create the database in a draft directory, then rename it, so that a crash never leaves half a
    cluster."""
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
        raise Unavailable(f"initdb could not create {data}:\n{made.stdout}")
    single = [str(chosen.directory / "postgres"), "--single", "-D", str(draft), "-c", "exit_on_error=on"]
    created = _run([*single, "postgres"], account, lock, f"CREATE DATABASE {DATABASE}\n")
    if created.returncode:
        raise Unavailable(f"the database {DATABASE} could not be created in {data}:\n{created.stdout}")
    draft.rename(data)


def _locales(major: int) -> tuple[list[str], ...]:
    """Return initdb options that sort by code point and know UTF-8 letters, the same on every machine."""
    if major >= 17:
        return (["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"],)
    return (["--locale=C.UTF-8"], ["--locale=C"])


def _run(command: list[str], account: Account | None, lock: int, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command that inherits the keeper's lock: if we are killed, no other process starts over while it still
    writes."""
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
