"""The address of a database: a `postgresql://` URL, as libpq takes it, with one server or several."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from stepwell.model.errors import InvalidSetting

PORT = 5432
WRITES = "read-write"
_TARGETS = ("any", "primary", WRITES)
_READS = ("standby", "prefer-standby", "read-only")
_SCHEMES = ("postgresql", "postgres")
_ITEM = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>.*))?", re.DOTALL)
_ENCODE = "percent-encode what is special in the password: @ : / ? # [ ]"
_LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a DSN. A host that begins with a slash is a directory with a Unix socket in it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Dsn:
    text: str
    """The DSN without the driver's name that SQLAlchemy puts into it."""
    servers: tuple[Server, ...]
    """Empty if neither the DSN nor `PGHOST` names one: then it is this machine, or what a service file says."""
    database: str
    target: str | None
    """What a server must be to be used, as libpq's `target_session_attrs`; None, it is not said."""
    has_settings: bool
    """Whether it has anything behind its question mark."""
    port: int
    """The port where no server is named."""

    def __str__(self) -> str:
        """Hosts, ports and the name of the database, and never a password."""
        servers = ",".join(map(str, self.servers)) or f"localhost:{self.port}"
        return f"{servers}/{self.database}"


def read_dsn(dsn: str) -> Dsn:
    """The parts of a DSN; InvalidSetting says what is wrong with it, and never shows it: a password may be in it."""
    if not isinstance(dsn, str):
        raise InvalidSetting("dsn", type(dsn).__name__, "a DSN is a text that begins with postgresql://")
    scheme, found, rest = dsn.partition("://")
    scheme = scheme.partition("+")[0] if found else ""
    if scheme not in _SCHEMES:
        raise InvalidSetting("dsn", scheme[:40] or "no scheme", "a DSN begins with postgresql://")
    if "\0" in unquote(rest):
        raise _wrong("it has a NUL character in it")
    text = f"{scheme}://{rest}"
    try:
        parts = urlsplit(text)
        asked = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    except ValueError:
        raise _wrong(f"it cannot be read: {_ENCODE}; what stands behind ? is name=value") from None
    if parts.netloc.count("@") > 1:
        raise _wrong(f"it has more than one @: {_ENCODE}")
    ports = (asked.get("port") or os.environ.get("PGPORT", "")).split(",")
    if hosts := parts.netloc.rpartition("@")[2]:
        servers = [_server(name) for name in hosts.split(",")]
    else:
        # What is not said is in the environment, as for every program that speaks with Postgres.
        usual = "" if "service" in asked or "PGSERVICE" in os.environ else os.environ.get("PGHOST", "")
        servers = _servers(asked.get("host") or usual, ports)
    return Dsn(text, tuple(servers), unquote(parts.path.lstrip("/")), _target(asked), bool(asked), _port(ports[0]))


def _servers(hosts: str, ports: list[str]) -> list[Server]:
    names = hosts.split(",") if hosts else []
    if len(ports) == 1:
        ports = ports * len(names)
    if names and len(ports) != len(names):
        raise _wrong(f"it has {len(names)} hosts and {len(ports)} ports")
    return [_server(name, port) for name, port in zip(names, ports, strict=False)]


def _server(name: str, port: str = "") -> Server:
    found = None if name.startswith("/") else _ITEM.fullmatch(name)
    host, own = (name, None) if found is None else (found["host"], found["port"])
    return Server(_host(unquote(host.strip("[]"))), _port(port or own or ""))


def _port(given: str) -> int:
    if not given and "," not in (usual := os.environ.get("PGPORT", "")):
        given = usual
    # Not shown: what stands there may be part of a password.
    if given and not (given.isascii() and given.isdigit() and 0 < int(given[:6]) < 65_536):
        raise _wrong(f"its port is not a number from 1 to 65535: {_ENCODE}")
    return int(given or PORT)


def _host(host: str) -> str:
    if host.startswith("/"):
        if len(host.encode(errors="replace")) > _LONGEST_SOCKET:
            raise _wrong(f"the path of a Unix socket has at most {_LONGEST_SOCKET} bytes")
        return host
    try:
        fits = len(host) < 254 and host.encode("idna").decode().isprintable() and not any(map(str.isspace, host))
    except UnicodeError:  # a part between two dots that is empty, or longer than 63 letters
        fits = False
    if not fits:
        raise _wrong(
            "a host in it is no name and no address: its parts have 1 to 63 letters, and all of it at most 253"
        )
    return host or "localhost"


def _target(asked: dict[str, str]) -> str | None:
    given = asked.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS") or None
    if given in _READS:
        raise _wrong(f"target_session_attrs={given} leads to a server that takes no writes: use {WRITES}")
    if given is not None and given not in _TARGETS:
        raise _wrong(f"target_session_attrs is one of {', '.join(_TARGETS)}")
    return given


def _wrong(reason: str) -> InvalidSetting:
    return InvalidSetting("dsn", "…", reason)
