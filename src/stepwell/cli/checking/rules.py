"""The rules: dotted names that are looked for, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.replay.forbidden import INSTEAD, INSTEAD_OF_UNSEEDED, STEP, UNSEEDED

Verdict = Literal["wrong", "look"]


@dataclass(frozen=True, slots=True)
class Rule:
    what: str
    instead: str = STEP
    verdict: Verdict = "wrong"


def _named(names: Iterable[str], what: str, instead: str = STEP) -> dict[str, Rule]:
    return {name: Rule(f"{name}(): {what}", instead) for name in names}


_FILES, _NETWORK, _PROCESS, _THREAD = "a file", "the network", "a process", "a thread"
_OWN_LOOP = "await it: a workflow has its loop already"
_PATH = (
    "exists", "glob", "is_dir", "is_file", "iterdir", "mkdir", "open", "read_bytes", "read_text", "rename", "replace",
    "resolve", "rglob", "rmdir", "stat", "touch", "unlink", "write_bytes", "write_text", "cwd", "home",
)  # fmt: skip

BY_NAME: Mapping[str, Rule] = {
    **{name: Rule(f"{name}()", instead) for name, instead in INSTEAD.items()},
    **_named(("open", "io.open", "os.open", "codecs.open", "tokenize.open", "gzip.open", "sqlite3.connect"), _FILES),
    **_named((f"pathlib.Path.{verb}" for verb in _PATH), _FILES),
    **_named((f"os.path.{verb}" for verb in ("exists", "isfile", "isdir", "getsize", "getmtime")), _FILES),
    **_named(
        (
            f"os.{verb}"
            for verb in ("listdir", "scandir", "walk", "stat", "remove", "unlink", "rename", "replace", "mkdir")
        ),
        _FILES,
    ),
    **_named(("os.makedirs", "os.rmdir", "os.truncate", "os.chdir", "os.getcwd"), _FILES),
    **_named(("asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection"), _NETWORK),
    **_named(("os.system", "os.popen", "os.fork", "os.posix_spawn", "os.kill", "os.execv", "os.spawnv"), _PROCESS),
    **_named(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _PROCESS),
    **_named(("asyncio.to_thread", "asyncio.run_coroutine_threadsafe"), _THREAD),
    **_named(("asyncio.run", "asyncio.new_event_loop", "asyncio.Runner"), "a loop inside the loop", _OWN_LOOP),
    **_named(("input", "breakpoint"), "a person at a terminal", "workflow.signal(…), which can wait for days"),
}
"""Functions, wherever they are named: also one that is only passed on will be called."""

_CALLED: Mapping[str, tuple[str, ...]] = {
    _FILES: ("shutil", "tempfile", "glob", "fileinput", "aiofiles", "aiosqlite"),
    _NETWORK: (
        "requests", "httpx", "aiohttp", "urllib.request", "urllib3", "http.client", "socket", "ssl", "ftplib",
        "smtplib", "imaplib", "poplib", "websockets", "grpc", "boto3", "botocore", "aioboto3", "paramiko", "pika",
        "aio_pika", "kafka", "aiokafka", "redis", "openai", "anthropic", "stripe", "xmlrpc.client",
    ),
    "a database": (
        "asyncpg", "psycopg", "psycopg2", "pymysql", "aiomysql", "MySQLdb", "pymongo", "motor",
        "sqlalchemy.create_engine", "sqlalchemy.orm.Session", "sqlalchemy.orm.sessionmaker",
        "sqlalchemy.ext.asyncio.create_async_engine", "sqlalchemy.ext.asyncio.AsyncSession",
        "sqlalchemy.ext.asyncio.async_sessionmaker",
    ),
    _PROCESS: ("subprocess", "multiprocessing", "pexpect", "sh"),
    _THREAD: ("threading", "_thread", "concurrent.futures"),
}  # fmt: skip
BY_PACKAGE: Mapping[str, Rule] = {
    package: Rule(what) for what, packages in _CALLED.items() for package in packages
}  # fmt: skip
"""Packages of which nothing may be called, whatever it is."""

HARMLESS = frozenset({
    "threading.current_thread", "threading.local", "threading.get_ident", "subprocess.list2cmdline", "socket.inet_aton",
    "socket.inet_ntoa", "socket.htons", "socket.ntohs", "concurrent.futures.TimeoutError", "requests.Request",
})  # fmt: skip

BY_METHOD: Mapping[str, Rule] = {
    "run_in_executor": Rule("run_in_executor(): a thread"),
    "call_soon_threadsafe": Rule("call_soon_threadsafe(): a thread"),
    "run_until_complete": Rule("run_until_complete(): a loop inside the loop", _OWN_LOOP),
}
"""Methods so named, whatever they are of."""

WITHOUT_ARGUMENTS: Mapping[str, tuple[int, Rule]] = {
    UNSEEDED: (0, Rule("Random() without a seed", INSTEAD_OF_UNSEEDED)),
    "time.localtime": (0, Rule("time.localtime() of now", "workflow.now()")),
    "time.gmtime": (0, Rule("time.gmtime() of now", "workflow.now()")),
    "time.ctime": (0, Rule("time.ctime() of now", "workflow.now()")),
    "time.asctime": (0, Rule("time.asctime() of now", "workflow.now()")),
    "time.strftime": (1, Rule("time.strftime() of now", "workflow.now().strftime(…)")),
}
"""Calls with no more arguments than this ask the clock, or the system, for what they were not given."""

SYNC = Rule("a blocking call: .sync holds the worker up", "await the same verb without .sync")
BLOCKING_RESULT = Rule("result() that is not awaited", "await run.result(…)")
SWALLOWS = Rule(
    "swallows the end of the workflow, and its eviction from this worker", "except Exception, or raise it again"
)
RETURNS_IN_FINALLY = Rule("a return in finally swallows the end of the workflow", "return after the try statement")
SET_ORDER = Rule("the order of a set reaches what the workflow does", "sorted(…) of it", "look")
NOT_UNDONE = Rule(
    "the workflow's own timeout= undoes nothing: it ends the run, and none of its code is run any more",
    "async with asyncio.timeout(…), shorter than that, around what it does",
    "look",
)
TIMED: Mapping[str, Rule] = {"stepwell.workflow.on_rollback": NOT_UNDONE}
"""Calls that are looked for in a workflow that has a timeout of its own and is not timed inside."""
INSIDE = frozenset({"asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"})
"""Calls that do run the workflow's code when the time is over."""
FOREIGN = Rule("awaits what the workflow's loop does not know", STEP, "look")

KNOWS_ANY_LOOP = frozenset({"stepwell", "anyio", "async_timeout", "tenacity", "stamina", "aioitertools"})
"""Installed packages that may be awaited: they are made of asyncio alone."""


def by_package(name: str) -> Rule | None:
    """The rule for what is called by this dotted name."""
    parts = name.split(".")
    if name in HARMLESS:
        return None
    for length in range(len(parts), 0, -1):
        rule = BY_PACKAGE.get(".".join(parts[:length]))
        if rule is not None:
            return Rule(f"{name}(): {rule.what}", rule.instead)
    return None
