"""A PgBouncer in front of the tests' server, on a socket of its own, with two sessions for each database."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from tests.pooler.bringing import Program

PORT = 6432
SIZE = 2
STARTING = 10.0

Mode = Literal["session", "transaction"]


class Bouncer:
    def __init__(self, program: Program, place: Path, account: pwd.struct_passwd | None) -> None:
        self._program = program
        self._place = place
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, dsn: str) -> str:
        """The same database, through this."""
        parts = urlsplit(dsn)
        user = parts.netloc.rpartition("@")[0] or "anyone"
        return urlunsplit(parts._replace(netloc=f"{user}@", query=f"host={quote(str(self._place))}&port={PORT}"))

    def start(self) -> None:
        who: dict[str, Any] = {}
        if self._account is not None:
            who = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program.path, self._place / "ini"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=self._program.environment, **who,
            )  # fmt: skip
        _wait(self._process, self._place)

    def kill(self) -> None:
        """By other signals, newer ones wait for their clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        for left in self._place.glob(".s.PGSQL.*"):
            left.unlink()


@contextmanager
def bouncing(program: Program, server: str, *, mode: Mode, **options: Any) -> Iterator[Bouncer]:
    place = Path(tempfile.mkdtemp(prefix="pgb-", dir="/tmp"))  # a socket's path must be short
    try:
        bouncer = _prepared(program.copied(place / "program"), server, place, {"pool_mode": mode, **options})
        bouncer.start()
        try:
            yield bouncer
        finally:
            bouncer.kill()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _prepared(program: Program, server: str, place: Path, options: dict[str, Any]) -> Bouncer:
    host, facts = _server(server)
    settings = {
        "listen_addr": "", "unix_socket_dir": place, "listen_port": PORT, "auth_type": "any",
        "default_pool_size": SIZE, "max_client_conn": 500, "server_idle_timeout": 5, **options,
    }  # fmt: skip
    if program.version() >= (1, 21):
        settings.setdefault("max_prepared_statements", 0)
    lines = ["[databases]", f"* = {facts}", "[pgbouncer]", *(f"{name} = {each}" for name, each in settings.items())]
    (place / "ini").write_text("\n".join(lines) + "\n")
    account = _account(host)
    place.chmod(0o755)
    if account is not None:
        os.chown(place, account.pw_uid, account.pw_gid)
    return Bouncer(program, place, account)


def _server(dsn: str) -> tuple[str, str]:
    """The server's host, and what a pooler needs to log in there as we do."""
    parts = urlsplit(dsn)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    host = asked.get("host", parts.hostname or "localhost")
    facts = {"host": host, "port": asked.get("port", parts.port or 5432), "user": unquote(parts.username or "")}
    if parts.password:
        facts["password"] = "'" + unquote(parts.password).replace("'", "''") + "'"
    return host, " ".join(f"{name}={value}" for name, value in facts.items() if value)


def _account(host: str) -> pwd.struct_passwd | None:
    """PgBouncer refuses to run as root, and the embedded server's socket is only for its owner."""
    if os.geteuid() != 0:
        return None
    if host.startswith("/"):
        return pwd.getpwuid(Path(host).stat().st_uid)
    return pwd.getpwnam("nobody")


def _wait(process: subprocess.Popen[bytes], place: Path) -> None:
    until = time.monotonic() + STARTING
    while True:
        with socket.socket(socket.AF_UNIX) as knocking:
            try:
                knocking.connect(str(place / f".s.PGSQL.{PORT}"))
                return
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    process.kill()
                    raise RuntimeError(f"PgBouncer did not start:\n{(place / 'log').read_text()}") from None
        time.sleep(0.01)
