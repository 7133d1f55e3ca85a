"""Settings of an app: the argument of the call, else the environment variable, else the default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from stepwell.model.dsn import read_dsn
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import InvalidSetting

SHORTEST_LEASE = timedelta(milliseconds=500)
KEEP = "30d"
AS_SET = "as set"
"""Default of `keep`: read the environment, else use KEEP. None cannot say that, since it means "for ever"."""
_ANSWERS = {"": None, "auto": None, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
"""Values of environment variables for yes, no and "not set"."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an app."""

    dsn: str | None
    """DSN of the database; None: the embedded database."""
    home: Path
    schema: str
    lease: timedelta
    keep: timedelta | None
    """Time for which finished runs are kept; None: for ever."""
    pooler: bool | None
    """True if a pooler stands before Postgres, and lends a session for one transaction only; None: find out."""
    log_failures: bool = True
    """True if workers log failed runs and attempts."""


def settings(
    dsn: str | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    schema: str | None = None,
    lease: Duration | None = None,
    keep: Duration | None = AS_SET,
    pooler: bool | None = None,
    log_failures: bool | None = None,
) -> Settings:
    """Return the settings for these arguments, and check them."""
    chosen_lease: Duration = lease if lease is not None else os.environ.get("STEPWELL_LEASE") or "30s"
    if isinstance(chosen_lease, str) and chosen_lease.replace(".", "", 1).isdigit():
        chosen_lease = float(chosen_lease)
    held = duration(chosen_lease, setting="lease")
    if held < SHORTEST_LEASE:
        raise InvalidSetting("lease", chosen_lease, f"must be at least {SHORTEST_LEASE.total_seconds()} s")
    # Arguments win over the environment. `home` is an argument that asks for the embedded database.
    chosen = dsn or (None if home is not None else os.environ.get("STEPWELL_DSN"))
    return Settings(
        dsn=read_dsn(chosen).text if chosen else None,
        home=Path(home or os.environ.get("STEPWELL_HOME") or ".stepwell").absolute(),
        schema=schema or os.environ.get("STEPWELL_SCHEMA") or "stepwell",
        lease=held,
        keep=_kept(keep),
        pooler=_pooler() if pooler is None else pooler,
        log_failures=_logs_failures() if log_failures is None else log_failures,
    )


def _pooler() -> bool | None:
    given = os.environ.get("STEPWELL_POOLER", "").lower()
    if given not in _ANSWERS:
        raise InvalidSetting(
            "pooler", given, "STEPWELL_POOLER must be 1 (there is a pooler), 0 (there is none) or unset, to find out"
        )
    return _ANSWERS[given]


def _logs_failures() -> bool:
    given = os.environ.get("STEPWELL_LOG_FAILURES", "").lower()
    if given not in _ANSWERS:
        raise InvalidSetting(
            "log_failures", given, "STEPWELL_LOG_FAILURES must be 1, the default, to log failures, or 0"
        )
    return _ANSWERS[given] is not False


def _kept(keep: Duration | None) -> timedelta | None:
    given = os.environ.get("STEPWELL_KEEP") or KEEP if keep == AS_SET else keep
    if given is None or given == "forever":
        return None
    kept = duration(given, setting="keep")
    if kept < timedelta(days=1):
        raise InvalidSetting(
            "keep",
            given,
            "must be at least a day, since finished runs are deleted by the day; None keeps them for ever",
        )
    return kept
