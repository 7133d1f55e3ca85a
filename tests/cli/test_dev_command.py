from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

from rich.console import Console

from stepwell import Retry
from stepwell.cli.live import moves_shown
from stepwell.cli.watching import SaveWatch, changed, look
from tests.waiting_for import until

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
APP = """
from stepwell import App
app = App()

@app.task
async def version() -> int:
    return {version}
"""


async def test_every_save_starts_the_worker_anew(process, client, tmp_path):
    source = tmp_path / "tea.py"
    source.write_text(APP.format(version=1))
    async with process("dev", "tea.py", cwd=tmp_path) as dev:
        await dev.line("ready: ")
        run = await client.start("tea.version")
        await dev.line(f"completed *tea.version {run.id}")
        assert await run.result(timeout=30) == 1

        source.write_text(APP.format(version=")"))
        await dev.line("SyntaxError")
        await dev.line("waiting for the next save")

        source.write_text(APP.format(version=22))
        await dev.line("ready: ")
        assert await (await client.start("tea.version")).result(timeout=10) == 22
        await dev.line("2 completed")
        dev.signal(signal.SIGINT)
        assert await dev.exit_code() == 0


async def test_a_save_in_the_second_of_the_last_one_is_run(process, client, tmp_path, monkeypatch):
    """Of the same size, too: Python would take what it compiled from the last one to be of this one."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    source, second = tmp_path / "tea.py", int(time.time()) * 10**9

    def save(version: int) -> None:
        whole = tmp_path / "tea.new"
        whole.write_text(APP.format(version=version))
        os.utime(whole, ns=(second + version, second + version))
        whole.replace(source)

    save(1)
    async with process("dev", "tea.py", cwd=tmp_path) as dev:
        for version in (1, 2):
            await dev.line("ready: ")
            assert await (await client.start("tea.version")).result(timeout=30) == version
            save(2)


def test_a_save_that_is_seen_in_the_middle_is_told_when_it_is_over():
    before, half, whole = {"app.py": (1, 90)}, {"app.py": (2, 0)}, {"app.py": (2, 95)}
    saves = SaveWatch(before)
    assert [saves.among(each) for each in (before, half, whole, whole, whole)] == [[], [], [], ["app.py"], []]


async def test_what_ends_as_soon_as_runs_are_watched_is_shown(app):
    """The worker begins in that block: what it completes at once is not taken for something of before."""
    tea = app.task(name="tea")(nothing)
    shown = StringIO()
    async with app.worker(), moves_shown(app, Console(file=shown, soft_wrap=True)):
        run = await tea.start()
        await run.result(10)
        await until(lambda: said(shown, f"completed  tea {run.id}"))


async def nothing() -> None:
    pass


async def said(shown: StringIO, words: str) -> bool:
    return words in shown.getvalue()


def test_only_the_users_own_sources_are_watched(tmp_path):
    for name in (".venv/a.py", "env/pyvenv.cfg", "env/b.py", "__pycache__/c.py", "notes.txt", "app.py", "pkg/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = look(tmp_path)
    assert sorted(os.path.relpath(path, tmp_path) for path in before) == ["app.py", "pkg/d.py"]
    (tmp_path / "pkg/d.py").write_text("x")
    (tmp_path / "app.py").unlink()
    assert [os.path.basename(path) for path in changed(before, look(tmp_path))] == ["app.py", "d.py"]


def test_the_demo_ends_as_it_should(server, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "STEPWELL_DSN"}
    demo = subprocess.run(
        [sys.executable, str(DEMO), "--exit"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "all as it should be" in demo.stdout


async def test_an_attempt_that_will_be_tried_again_is_shown_with_its_error_once(app):
    failures = iter([ValueError("no tea"), None])

    @app.task(name="tea", retry=Retry(attempts=2, delay=0.6))
    async def tea() -> None:
        if (failure := next(failures)) is not None:
            raise failure

    shown = StringIO()
    async with app.worker(), moves_shown(app, Console(file=shown, soft_wrap=True, width=400)):
        run = await tea.start()
        await run.result(10)
        await until(lambda: said(shown, "completed"))
    (line,) = [line for line in shown.getvalue().splitlines() if "no tea" in line]
    assert "scheduled" in line
    assert line.endswith("after ValueError: no tea")
