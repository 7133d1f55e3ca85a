"""Functions that workflow code must not call, and their alternatives: for the run-time guard and `stepwell check`."""

from __future__ import annotations

from collections.abc import Mapping

_NOW = "workflow.now()"
_LENGTH = "workflow.now() before and after"
_RANDOM = "workflow.random"
_UUID = "workflow.uuid()"
_SECRET = "a step that creates it: numbers of workflow.random are predictable"
_PROCESS = "workflow.info().id, or a step that reads it: another process may continue this run"

STEP = "a step or a task that does it, and await that"

OF_RANDOM = (
    "betavariate", "binomialvariate", "choice", "choices", "expovariate", "gammavariate", "gauss", "getrandbits",
    "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random", "randrange", "sample",
    "seed", "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate",
)  # fmt: skip

INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow"), _NOW),
    **dict.fromkeys(("datetime.datetime.today", "time.clock_gettime", "time.clock_gettime_ns"), _NOW),
    "datetime.date.today": "workflow.now().date()",
    **{
        f"time.{clock}{unit}": _LENGTH
        for clock in ("monotonic", "perf_counter", "process_time", "thread_time")
        for unit in ("", "_ns")
    },
    "time.sleep": "await asyncio.sleep(…): it is durable, and blocks no other run",
    **{f"random.{name}": f"{_RANDOM}.{name}(…)" for name in OF_RANDOM},
    "random.SystemRandom": _RANDOM,
    **dict.fromkeys(("os.urandom", "os.getrandom"), _SECRET),
    **{f"secrets.{name}": _SECRET for name in ("choice", "randbelow", "randbits", "SystemRandom")},
    **{f"secrets.token_{kind}": _SECRET for kind in ("bytes", "hex", "urlsafe")},
    **{f"uuid.uuid{version}": _UUID for version in (1, 4, 6, 7)},
    **dict.fromkeys(("os.getpid", "os.getppid"), _PROCESS),
}
"""Functions whose results differ from call to call, by dotted name, with the alternative to each."""

OF_LIBRARIES = frozenset(
    {name for name, instead in INSTEAD.items() if instead.startswith(_NOW)}
    | {f"time.{clock}{unit}" for clock in ("monotonic", "perf_counter") for unit in ("", "_ns")}
    | {"time.sleep"}
)
"""Functions that are refused in installed packages, too, if a call bypasses the clocks of `clocks`. Packages decide by
such a clock how often to retry and when to give up."""

UNSEEDED = "random.Random"
"""The class that is allowed only with a seed."""
INSTEAD_OF_UNSEEDED = f"{_RANDOM}, or Random(seed)"
