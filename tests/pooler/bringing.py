"""Where the tests' PgBouncer comes from: this machine, or this machine's archive of packages, unpacked, not installed.

Nothing of it needs root. A machine that has neither is told how to get one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HOW_TO = (
    "The tests of poolers need PgBouncer, and none is on PATH or could be fetched ({why}). Install it, for example by"
    " `apt install pgbouncer` or `brew install pgbouncer`, or name its program: STEPWELL_PGBOUNCER=/path/to/pgbouncer."
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepwell-tests"
FETCHING = 120.0
"""Seconds that each command may take."""


class NotThere(Exception):
    pass


@dataclass(frozen=True)
class Program:
    path: Path
    libraries: tuple[Path, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        beside = [str(each) for each in self.libraries]
        told = [*beside, os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, told))} if beside else dict(os.environ)

    def version(self) -> tuple[int, int]:
        said = _run([str(self.path), "--version"], environment=self.environment)
        numbers = re.search(r"(\d+)\.(\d+)", said)
        if numbers is None:
            raise NotThere(f"{self.path} does not say its version")
        return int(numbers[1]), int(numbers[2])

    def copied(self, to: Path) -> Program:
        """Where an account that cannot enter our home can run it."""
        if CACHE not in self.path.parents:
            return self
        shutil.copytree(self.path.parents[2], to, symlinks=True)
        moved = [to / each.relative_to(self.path.parents[2]) for each in (self.path, *self.libraries)]
        return Program(moved[0], tuple(moved[1:]))


def pgbouncer() -> Program:
    """Raises NotThere, and says why."""
    if named := os.environ.get("STEPWELL_PGBOUNCER"):
        return Program(Path(named).absolute())
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if installed := shutil.which("pgbouncer", path=search):
        return Program(Path(installed))
    place = CACHE / "pgbouncer"
    if not (place / "usr/sbin/pgbouncer").exists():
        _fetch(place)
    return _unpacked(place)


def _unpacked(place: Path) -> Program:
    libraries = sorted({each.parent for each in place.rglob("*.so.*")})
    return Program(place / "usr/sbin/pgbouncer", tuple(libraries))


def _fetch(place: Path) -> None:
    if not all(map(shutil.which, ("apt-get", "apt-cache", "dpkg-deb"))):
        raise NotThere("there is no apt-get here to fetch it with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        made = Path(work) / "made"
        for apt in _archives(Path(work)):
            try:
                _bring(apt, Path(work), made)
                break
            except (subprocess.SubprocessError, OSError, NotThere) as error:
                why = error
        else:
            raise NotThere(f"apt-get: {why}")
        try:
            made.rename(place)
        except OSError:
            if not place.exists():  # else another process was as quick
                raise


def _archives(work: Path) -> Iterator[list[str]]:
    """As the machine knows the archive; and if it does not know it, or no longer rightly, with a list of our own."""
    unprivileged = ["-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=2"]
    yield unprivileged
    for name in ("lists/partial", "archives/partial"):
        (work / name).mkdir(parents=True)
    own = [*unprivileged, "-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work}"]
    with suppress(NotThere):  # one archive of several may be away: what is listed is enough, or is not
        _run(["apt-get", *own, "-qq", "update"])
    yield own


def _bring(apt: Sequence[str], work: Path, made: Path) -> None:
    """The program, and the libraries it needs that are not installed: those of this machine must stay its own."""
    wanted, brought = {"pgbouncer"}, set[str]()
    while wanted:
        _download(apt, work, made, sorted(wanted))
        brought |= wanted
        if not _lacks(made):
            return
        listed = _run(["apt-cache", *apt, "depends", *sorted(wanted)])
        wanted = {each for each in re.findall(r"Depends: (lib[\w.+-]+)", listed) if not _is_installed(each)} - brought
    raise NotThere(f"it needs {', '.join(_lacks(made))}")


def _is_installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", package]
    return subprocess.run(asked, capture_output=True, text=True).stdout.startswith("ii")


def _download(apt: Sequence[str], work: Path, made: Path, packages: list[str]) -> None:
    loads = work / "loads"
    shutil.rmtree(loads, ignore_errors=True)
    loads.mkdir()
    _run(["apt-get", *apt, "-qq", "download", *packages], at=loads)
    for package in loads.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(made)])


def _lacks(made: Path) -> list[str]:
    program = _unpacked(made)
    told = _run(["ldd", str(program.path)], environment=program.environment)
    return re.findall(r"(\S+) => not found", told)


def _run(command: list[str], *, at: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, timeout=FETCHING)
    if done.returncode:
        raise NotThere((done.stderr.strip() or done.stdout.strip() or command[0]).splitlines()[-1])
    return done.stdout
