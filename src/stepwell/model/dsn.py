"""The address of a database: a `postgresql://` URL as libpq takes it, with one or several servers."""

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
_ENCODE = "percent-encode special characters in the password: @ : / ? # [ ]"
_LONGEST_SOCKET = 107
"""The most bytes that the path of a Unix socket may have."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a DSN. A host that begins with a slash is the directory of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Dsn:
    """A DSN, parsed."""

    text: str
    """The DSN without the driver name of SQLAlchemy (`+asyncpg`)."""
    servers: tuple[Server, ...]
    """The servers; empty if neither the DSN nor `PGHOST` names one: then this machine, or what a service file names."""
    database: str
    target: str | None
    """The required kind of server, as libpq's `target_session_attrs`; None if it is not given."""
    has_settings: bool
    """True if the DSN has settings after its question mark."""
    port: int
    """The port to use where no server is named."""

    def __str__(self) -> str:
        """Return hosts, ports and the name of the database, but never a password."""
        servers = ",".join(map(str, self.servers)) or f"localhost:{self.port}"
        return f"{servers}/{self.database}"


def read_dsn(dsn: str) -> Dsn:
    """Parse a DSN. InvalidSetting says what is wrong, but never quotes the DSN: it may contain a password."""
    if not isinstance(dsn, str):
        raise InvalidSetting("dsn", type(dsn).__name__, "a DSN is a text that begins with postgresql://")
    scheme, found, rest = dsn.partition("://")
    scheme = scheme.partition("+")[0] if found else ""
    if scheme not in _SCHEMES:
        raise InvalidSetting("dsn", scheme[:40] or "no scheme", "a DSN begins with postgresql://")
    if "\0" in unquote(rest):
        raise _wrong("it contains a NUL character")
    text = f"{scheme}://{rest}"
    try:
        parts = urlsplit(text)
        asked = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    except ValueError:
        raise _wrong(f"it cannot be parsed: {_ENCODE}; settings after ? are name=value") from None
    if parts.netloc.count("@") > 1:
        raise _wrong(f"it has more than one @: {_ENCODE}")
    ports = (asked.get("port") or os.environ.get("PGPORT", "")).split(",")
    if hosts := parts.netloc.rpartition("@")[2]:
        servers = [_server(name) for name in hosts.split(",")]
    else:
        # What the DSN leaves out comes from the environment, as in every client of Postgres.
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
    # Not quoted in the message: the text may be part of a password.
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
    except UnicodeError:  # a label between two dots is empty or longer than 63 letters
        fits = False
    if not fits:
        raise _wrong(
            "a host in it is neither a name nor an address: each part has 1 to 63 letters, and the whole at most 253"
        )
    return host or "localhost"


def _target(asked: dict[str, str]) -> str | None:
    given = asked.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS") or None
    if given in _READS:
        raise _wrong(f"target_session_attrs={given} asks for a server that takes no writes: use {WRITES}")
    if given is not None and given not in _TARGETS:
        raise _wrong(f"target_session_attrs must be one of {', '.join(_TARGETS)}")
    return given


def _wrong(reason: str) -> InvalidSetting:
    return InvalidSetting("dsn", "…", reason)
