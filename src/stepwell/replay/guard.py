"""Refuse operations of workflow code that a replay could not repeat.

    always      files, sockets, processes and threads: an audit hook is called wherever they are opened, and searches
                the stack outwards for the user's line that led to it; time.sleep: see `clocks`
    when strict clocks, random numbers and uuids, called by a line of the user's: only a profile function can detect
                them, which is too expensive for production

Code outside of workflows and other threads are not affected.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from threading import get_ident
from types import FrameType
from typing import Any

from stepwell.model.errors import NotDurable
from stepwell.replay.calls import forbidden_call
from stepwell.replay.frames import Whose, package_of, place_of, whose

_FILES, _NETWORK, _PROCESSES, _THREADS = "files", "sockets", "processes", "threads"
_EVENTS = {
    **dict.fromkeys(
        (
            "open", "os.chmod", "os.chown", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
            "os.scandir", "os.symlink", "os.truncate", "os.utime", "os.walk", "shutil.copyfile", "shutil.copytree",
            "shutil.move", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp", "glob.glob", "sqlite3.connect",
        ),
        _FILES,
    ),
    **dict.fromkeys(
        (
            "socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr",
            "socket.gethostbyname", "socket.gethostname", "socket.getnameinfo", "socket.sendmsg", "socket.sendto",
            "urllib.Request", "http.client.connect", "http.client.send", "ftplib.connect", "ftplib.sendcmd",
            "imaplib.open", "imaplib.send", "poplib.connect", "poplib.putline", "smtplib.connect", "smtplib.send",
        ),
        _NETWORK,
    ),
    **dict.fromkeys(
        (
            "subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
            "os.system", "pty.spawn", "webbrowser.open",
        ),
        _PROCESSES,
    ),
    **dict.fromkeys(("_thread.start_new_thread", "_thread.start_joinable_thread"), _THREADS),
}  # fmt: skip

_FOR_THEIR_OWN_SAKE = {
    # Imports, tracebacks, and tables that are read when first needed …
    "importlib", "zipimport", "pkgutil", "linecache", "traceback", "inspect", "warnings", "zoneinfo", "encodings",
    "gettext", "locale", "mimetypes", "pkg_resources",
    # … logging, tracing and metrics …
    "logging", "loguru", "structlog", "rich", "sentry_sdk", "opentelemetry", "ddtrace", "datadog", "elasticapm",
    "logfire", "newrelic", "prometheus_client", "statsd",
    # … and debuggers, coverage and test tools.
    "pdb", "bdb", "pydevd", "_pydevd_bundle", "debugpy", "coverage", "_pytest", "pytest_timeout",
}  # fmt: skip
"""Modules that may open files and sockets, because this does not change the workflow's result."""

inside: dict[int, Any] = {}
"""The loop of each thread that runs workflow code now. It is checked first, because it is nearly always empty."""
_INSTEAD_OF_PACKAGE = (
    "Pass it workflow.now() if it accepts a time, use a package that calls time.monotonic(), which returns the "
    "workflow's time, or do it in a step or a task, and await that."
)
_installed = False
_strict = os.environ.get("STEPWELL_STRICT", "").lower() in ("1", "true", "yes")
_gates: set[int] = set()
"""Identities of the code objects that run workflow code: frames outside of them are not the workflow's."""


def strict(on: bool = True) -> None:
    """Turn the strict mode of this process on or off: it refuses clocks, random numbers and uuids."""
    global _strict
    _strict = on


def strict_by_default() -> None:
    """Turn the strict mode on, unless STEPWELL_STRICT is set."""
    if not os.environ.get("STEPWELL_STRICT"):
        strict()


def is_strict() -> bool:
    return _strict


def guarded(run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Decorate the method that runs workflow code in this thread."""

    @wraps(run)
    def run_guarded(self: Any, then: Any) -> None:
        thread = get_ident()
        if _strict or not _installed or thread in inside:
            _run_watched(run, self, then, thread)
            return
        inside[thread] = self
        try:
            run(self, then)
        finally:
            del inside[thread]

    gate: Any = run_guarded
    _gates.add(id(gate.__code__))
    return run_guarded


def _run_watched(run: Callable[[Any, Any], None], loop: Any, then: Any, thread: int) -> None:
    """Run workflow code for the first time, inside other workflow code, or in strict mode."""
    if thread in inside:
        run(loop, then)
        return
    if not _installed:
        _install()
    inside[thread] = loop
    watching = _strict and sys.getprofile() is None
    try:
        if watching:
            sys.setprofile(_watch)
        run(loop, then)
    finally:
        # Python removes a profile function that raised.
        if watching and sys.getprofile() is _watch:
            sys.setprofile(None)
        del inside[thread]


def _install() -> None:
    """Install the audit hook, once: Python cannot remove it again."""
    global _installed
    _installed = True
    sys.addaudithook(_audit)
    if sys.version_info < (3, 12):
        _tell_of_threads()


def _tell_of_threads() -> None:
    """Raise an audit event before a thread starts, as Python does from 3.12 on."""
    start = _thread.start_new_thread

    @wraps(start)
    def start_and_tell(*args: Any) -> int:
        sys.audit("_thread.start_new_thread", *args)
        return start(*args)

    for module in (_thread, threading):
        for name in ("start_new_thread", "_start_new_thread"):
            if getattr(module, name, None) is start:
                setattr(module, name, start_and_tell)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not inside:
        return
    what = _EVENTS.get(event)
    if what is None or get_ident() not in inside or (event == "open" and _is_data(*args)):
        return
    user = _user_behind(sys._getframe(1))
    if user is not None:
        raise NotDurable(what, place_of(user))


def _is_data(path: Any, mode: str | None, flags: int) -> bool:
    """Tell whether an open() only reads installed files or time zone data, or reuses an open file descriptor."""
    if isinstance(path, int):
        return True
    if (flags & (os.O_WRONLY | os.O_RDWR)) or not isinstance(path, str | bytes):
        return False
    file = os.fsdecode(path)
    zones = getattr(sys.modules.get("zoneinfo"), "TZPATH", ())
    return whose(file) is not Whose.USERS or any(file.startswith(zone + os.sep) for zone in zones)


def _user_behind(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame that led here; None if a module in between acts for its own purposes, such as logging."""
    packages: list[FrameType] = []
    user: FrameType | None = None
    while frame is not None and id(frame.f_code) not in _gates:
        by = whose(frame.f_code.co_filename)
        if frame.f_code.co_name == "__del__" or (by is not Whose.USERS and package_of(frame) in _FOR_THEIR_OWN_SAKE):
            return None
        if by is Whose.USERS:
            user = user or frame
        elif by is Whose.INSTALLED:
            packages.append(frame)
        frame = frame.f_back
    return user or _own_line(packages)


def asked_by() -> FrameType | None:
    """Return the user's frame on whose behalf the caller of our caller reads a clock. Return None if our own code,
    asyncio or a module such as logging reads it for its own purposes."""
    caller = sys._getframe(2)
    if whose(caller.f_code.co_filename) is Whose.OURS or package_of(caller) == "asyncio":
        return None
    return _user_behind(caller)


def _own_line(packages: Sequence[FrameType]) -> FrameType | None:
    """Find the workflow's frame if the user's code is itself an installed package: the outermost package is it."""
    if not packages:
        return None
    own = package_of(packages[-1])
    return next(frame for frame in packages if package_of(frame) == own)


def _watch(frame: FrameType, event: str, function: Any) -> None:
    """Check every call in this thread, and raise NotDurable for a forbidden call. This is the profile function."""
    found = forbidden_call(frame, event, function)
    if found is None:
        return
    caller = frame if event == "c_call" else frame.f_back
    if caller is None:
        return
    by = whose(caller.f_code.co_filename)
    if not (found.by_anyone or by is Whose.USERS or (found.by_packages and by is Whose.INSTALLED)):
        return
    user = _user_behind(caller)
    if user is None:
        return
    package = package_of(caller)
    if by is Whose.INSTALLED and not found.by_anyone and package != package_of(user):
        raise NotDurable(f"{found.what}, which {package} calls", place_of(user), _INSTEAD_OF_PACKAGE)
    raise NotDurable(found.what, place_of(user), f"Write {found.instead}.")
