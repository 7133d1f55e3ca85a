"""Settings: what the call says, else the environment, else the default."""

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
"""Where the call says nothing: by the environment, else the default. None is an answer of its own."""
_ANSWERS = {"": None, "auto": None, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Settings:
    dsn: str | None
    """None: the embedded database."""
    home: Path
    schema: str
    lease: timedelta
    keep: timedelta | None
    """How long finished runs are kept; None, for ever."""
    pooler: bool | None
    """Whether a pooler lends sessions for a transaction only; None, it is found out."""
    log_failures: bool = True
    """Whether workers log failed runs and attempts."""


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
    chosen_lease: Duration = lease if lease is not None else os.environ.get("STEPWELL_LEASE") or "30s"
    if isinstance(chosen_lease, str) and chosen_lease.replace(".", "", 1).isdigit():
        chosen_lease = float(chosen_lease)
    held = duration(chosen_lease, setting="lease")
    if held < SHORTEST_LEASE:
        raise InvalidSetting("lease", chosen_lease, f"must be at least {SHORTEST_LEASE.total_seconds()} s")
    # What the call says goes before the environment: a home asks for the embedded database.
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
        raise InvalidSetting("pooler", given, "1 if there is one, 0 if there is none; without it, it is found out")
    return _ANSWERS[given]


def _logs_failures() -> bool:
    given = os.environ.get("STEPWELL_LOG_FAILURES", "").lower()
    if given not in _ANSWERS:
        raise InvalidSetting("log_failures", given, "1 to log failures, which is the default, or 0")
    return _ANSWERS[given] is not False


def _kept(keep: Duration | None) -> timedelta | None:
    given = os.environ.get("STEPWELL_KEEP") or KEEP if keep == AS_SET else keep
    if given is None or given == "forever":
        return None
    kept = duration(given, setting="keep")
    if kept < timedelta(days=1):
        raise InvalidSetting(
            "keep", given, "at least a day, since finished runs leave by the day; None keeps them for ever"
        )
    return kept
