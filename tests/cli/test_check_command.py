"""`stepwell check`: every forbidden call is found by its text, wherever a workflow can come by it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from stepwell import App, RunFailed
from stepwell import workflow as durable
from stepwell.cli.checking.examine import Finding, examine, in_file, of_function
from stepwell.cli.checking.sources import Sources
from stepwell.cli.main import run as run_command_line

Check = Callable[..., list[Finding]]


def workflow(body: str, head: str = "", parameters: str = "") -> str:
    """A file with one workflow, whose body begins in line 1 of what is given."""
    start = f"from stepwell import App, workflow\n{dedent(head)}\napp = App()\n\n@app.workflow\n"
    return f"{start}async def checkout({parameters}):\n{indent(dedent(body), '    ')}\n"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """What is found in a workflow of this body; `beside` are other files."""

    def find(body: str, head: str = "", parameters: str = "", **beside: str) -> list[Finding]:
        for name, text in beside.items():
            place = tmp_path / f"{name}.py"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(dedent(text))
        flows = tmp_path / "flows.py"
        flows.write_text(workflow(body, head, parameters))
        sources = Sources()
        return examine(in_file(flows, sources), sources)

    return find


TASKS = """
import time
from stepwell import App
app = App()
@app.task
async def charge(n): return time.time()
@app.step(timeout=5)
def reserve(n): return open('a')
"""

FORBIDDEN = [
    # imports, call, what to write instead
    ("import time", "time.time()", "workflow.now()"),
    ("import time as t", "t.time()", "workflow.now()"),
    ("from time import time", "time()", "workflow.now()"),
    ("from time import time as t", "t()", "workflow.now()"),
    ("from time import *", "monotonic()", "workflow.now()"),
    ("import time", "time.monotonic()", "workflow.now()"),
    ("import time", "time.perf_counter_ns()", "workflow.now()"),
    ("import time", "time.localtime()", "workflow.now()"),
    ("import time", "time.strftime('%Y')", "workflow.now()"),
    ("import time", "time.sleep(1)", "asyncio.sleep"),
    ("from datetime import datetime", "datetime.now()", "workflow.now()"),
    ("from datetime import datetime as dt, UTC", "dt.now(UTC)", "workflow.now()"),
    ("import datetime", "datetime.datetime.utcnow()", "workflow.now()"),
    ("from datetime import date", "date.today()", "workflow.now().date()"),
    ("import random", "random.random()", "workflow.random"),
    ("from random import shuffle", "shuffle([1])", "workflow.random"),
    ("from random import Random", "Random()", "Random(seed)"),
    ("from random import Random", "Random(None)", "Random(seed)"),
    ("import random", "random.SystemRandom()", "workflow.random"),
    ("import os", "os.urandom(8)", "step"),
    ("import os", "os.getpid()", "workflow.info()"),
    ("import secrets", "secrets.token_hex()", "step"),
    ("from uuid import uuid4", "uuid4()", "workflow.uuid()"),
    ("import uuid", "uuid.uuid1()", "workflow.uuid()"),
    ("", "open('a')", "step"),
    ("", "input()", "workflow.signal"),
    ("from pathlib import Path", "Path('a').read_text()", "step"),
    ("import os", "os.listdir()", "step"),
    ("import shutil", "shutil.rmtree('a')", "step"),
    ("import tempfile", "tempfile.mkdtemp()", "step"),
    ("import requests", "requests.get('http://a')", "step"),
    ("import httpx", "httpx.get('http://a')", "step"),
    ("import urllib.request", "urllib.request.urlopen('http://a')", "step"),
    ("from urllib.request import urlopen", "urlopen('http://a')", "step"),
    ("import socket", "socket.create_connection(('a', 1))", "step"),
    ("import subprocess", "subprocess.run(['a'])", "step"),
    ("import os", "os.system('a')", "step"),
    ("import threading", "threading.Thread(target=print).start()", "step"),
    ("from concurrent.futures import ThreadPoolExecutor", "ThreadPoolExecutor()", "step"),
    ("import asyncio", "await asyncio.to_thread(print)", "step"),
    ("import asyncio", "await asyncio.get_running_loop().run_in_executor(None, print)", "step"),
    ("import asyncio", "await asyncio.open_connection('a', 1)", "step"),
    ("import asyncio", "await asyncio.create_subprocess_exec('a')", "step"),
    ("import asyncio", "asyncio.run(None)", "await it"),
    ("import asyncpg", "await asyncpg.connect()", "step"),
    ("import aiohttp", "aiohttp.ClientSession()", "step"),
    ("import some_client", "await some_client.ask()", "step"),
]


@pytest.mark.parametrize(("head", "call", "instead"), FORBIDDEN, ids=[f"{a} {b}" for a, b, _ in FORBIDDEN])
@pytest.mark.parametrize("way", ["at once", "inside", "imported in the workflow", "by another module", "by a method"])
def test_a_forbidden_call_is_found(check: Check, head: str, call: str, instead: str, way: str):
    match way:
        case "at once":
            (found,) = check(call, head)
        case "inside":
            (found,) = check(f"async def part():\n    return {call}\nawait part()", head)
        case "imported in the workflow":
            # Python allows no star there.
            (found,) = check(call, head) if "*" in head else check(f"{head}\n{call}")
        case "by another module":
            other = f"{head}\nasync def total():\n    return {call}\n"
            (found,) = check("await prices.total()", "import prices", prices=other)
            assert (Path(found.file).name, found.through) == ("prices.py", ("total",))
        case _:
            other = f"{head}\nclass Cart:\n    async def total(self):\n        return await self._sum()\n"
            other += f"    async def _sum(self):\n        {call}\n"
            (found,) = check(
                "await Cart().total()", "from shop.cart import Cart", **{"shop/cart": other, "shop/__init__": ""}
            )
            assert found.through == ("Cart.total", "Cart._sum")
    assert instead in found.instead
    assert found.workflow == "flows.checkout"


OTHERS = {
    "a variable that holds the function": ("import time", "now = time.time"),
    "a function that is passed on": ("import time", "list(map(time.time, []))"),
    "a client from the top of the file": ("import httpx\nclient = httpx.AsyncClient()", "await client.get('a')"),
    "a client from a with statement": ("", "async with made() as it:\n    import redis\n    redis.Redis()"),
    "blocking verbs": ("from tasks import charge", "charge.sync.start(1)"),
    "a result that is not awaited": ("from tasks import charge", "run = await charge.start(1)\nx = run.result()"),
    "a blocking result": ("", "def f(run):\n    return run.result(timeout=5)"),
    "a bare except": ("", "try:\n    pass\nexcept:\n    pass"),
    "except BaseException": ("", "try:\n    pass\nexcept BaseException as error:\n    print(error)"),
    "except of several": ("", "try:\n    pass\nexcept (ValueError, BaseException):\n    pass"),
    "suppress": ("from contextlib import suppress", "with suppress(BaseException):\n    pass"),
    "a return in finally": ("", "try:\n    pass\nfinally:\n    return 1"),
    "a loop over a set": ("from tasks import charge", "for each in {1, 2}:\n    await charge(each)"),
    "a set that is named": ("from tasks import charge", "ids = set([1])\nfor each in ids:\n    await charge(each)"),
    "a set of both": ("from tasks import charge", "ids = {1} | {2}\nfor each in ids:\n    await charge(each)"),
    "gather over a set": (
        "import asyncio\nfrom tasks import charge",
        "await asyncio.gather(*(charge(each) for each in {1, 2}))",
    ),
    "a set of calls as they complete": (
        "import asyncio\nfrom tasks import charge",
        "for each in asyncio.as_completed({charge(1), charge(2)}):\n    await each",
    ),
    "a named set as it completes": (
        "from asyncio import as_completed\nfrom tasks import charge",
        "calls = {charge(each) for each in (1, 2)}\nfor each in as_completed(calls, timeout=3):\n    await each",
    ),
    "a list of a set": ("from tasks import charge", "await charge(list({1, 2}))"),
    "what is popped from a set": ("", "ids = {1, 2}\nids.pop()"),
}


@pytest.mark.parametrize(("head", "body"), OTHERS.values(), ids=OTHERS)
def test_what_else_would_not_be_durable_is_found(check: Check, head: str, body: str):
    found = check(body, head, tasks=TASKS)
    assert len(found) == 1
    assert found[0].what
    assert found[0].instead


def test_a_parameter_is_what_its_annotation_says(check: Check):
    (found,) = check("await session.get('a')", "import aiohttp", parameters="session: aiohttp.ClientSession | None")
    assert "aiohttp.ClientSession.get()" in found.what
    (found,) = check("for each in ids:\n    workflow.publish(each)", parameters="ids: set[str]")
    assert found.verdict == "look"


ALLOWED = {
    "the replay-safe forms": ("", "workflow.now(), workflow.random.random(), workflow.uuid()"),
    "asyncio": ("import asyncio", "await asyncio.sleep(1)\nasync with asyncio.timeout(5):\n    pass"),
    "a seed": ("from random import Random", "Random(7).shuffle([1])"),
    "a time that is given": ("import time\nfrom datetime import datetime", "time.gmtime(0), datetime.fromtimestamp(0)"),
    "uuid5": ("import uuid", "uuid.uuid5(uuid.NAMESPACE_DNS, 'a')"),
    "a variable of that name": ("import time", "time = workflow.now()\ntime.time()"),
    "an annotation": ("import httpx", "answer: httpx.Response | None = None"),
    "an exception's class": ("import requests", "try:\n    pass\nexcept requests.HTTPError:\n    pass"),
    "raised again": ("", "try:\n    pass\nexcept BaseException:\n    print()\n    raise"),
    "except Exception": ("", "try:\n    pass\nexcept Exception:\n    pass"),
    "a sorted set": ("from tasks import charge", "for each in sorted({1, 2}):\n    await charge(each)"),
    "a set without order": ("", "total = 0\nfor each in {1, 2}:\n    total += each"),
    "a sum of a set": ("from tasks import charge", "await charge(sum({1, 2}), len({1}), sorted(x for x in {1}))"),
    "a task, awaited": ("from tasks import charge", "await charge(1)"),
    "a result, awaited": ("from tasks import charge", "run = await charge.start(1)\nawait run.result(timeout=5)"),
    "results, gathered": (
        "import asyncio\nfrom tasks import charge",
        "run = await charge.start(1)\nawait asyncio.gather(run.result())",
    ),
    "an asyncio task's result": ("import asyncio", "t = asyncio.create_task(None)\nawait t\nx = t.result()"),
    "a logger": ("import logging\nlog = logging.getLogger()", "log.info('a')"),
    "the environment": ("import os", "os.environ['A'], os.getenv('A'), os.path.join('a', 'b')"),
    "a set of tasks as they complete": (
        "import asyncio\nfrom tasks import charge",
        "for each in asyncio.as_completed({asyncio.create_task(charge(one)) for one in (1, 2)}):\n    await each",
    ),
    "a list as it completes": (
        "import asyncio\nfrom tasks import charge",
        "for each in asyncio.as_completed([charge(1), charge(2)]):\n    await each",
    ),
    "a path as such": ("from pathlib import Path", "str(Path('a') / 'b'), Path('a').name"),
}


@pytest.mark.parametrize(("head", "body"), ALLOWED.values(), ids=ALLOWED)
def test_what_is_durable_is_left_alone(check: Check, head: str, body: str):
    assert check(body, head, tasks=TASKS) == []


def test_tasks_and_steps_may_do_what_they_like(check: Check):
    body = "await charge(1)\nawait tasks.reserve(2)\nworkflow.on_rollback(charge, 1)"
    assert check(body, "import tasks\nfrom tasks import charge", tasks=TASKS) == []


SAGA = """
import asyncio
from stepwell import App, workflow
app = App()
@app.step
async def unbook(what): ...
def remember(what):
    workflow.on_rollback(unbook, what)
{decorator}
async def trip():
    {body}
@app.workflow
async def other():
    remember("a")
"""
UNDONE = 'workflow.on_rollback(unbook, "a")'


def sagas(tmp_path: Path, decorator: str, body: str) -> list[Finding]:
    (tmp_path / "saga.py").write_text(SAGA.format(decorator=decorator, body=body))
    sources = Sources()
    return examine(in_file(tmp_path / "saga.py", sources), sources)


@pytest.mark.parametrize(("body", "line", "through"), [(UNDONE, 11, ()), ('remember("a")', 8, ("remember",))])
def test_a_rollback_that_a_timeout_would_pass_over_is_found(
    tmp_path: Path, body: str, line: int, through: tuple[str, ...]
):
    (found,) = sagas(tmp_path, '@app.workflow(timeout="7d", queue="q")', body)
    assert (found.verdict, found.line, found.workflow, found.through) == ("look", line, "saga.trip", through)
    assert "timeout= undoes nothing" in found.what
    assert "asyncio.timeout(…), shorter" in found.instead


@pytest.mark.parametrize(
    ("decorator", "body"),
    [
        ("@app.workflow", UNDONE),
        ("@app.workflow(timeout=None)", UNDONE),
        ("@app.workflow(queue='q')", UNDONE),
        ("@app.workflow(timeout='7d')", f"async with asyncio.timeout(5):\n        {UNDONE}"),
        ("@app.workflow(timeout='7d')", f"await asyncio.wait_for(unbook('a'), 5)\n    {UNDONE}"),
        ("@app.workflow(timeout='7d')", f"{UNDONE}  # stepwell: ignore"),
        ("@app.workflow(timeout='7d')", "await unbook('a')"),
    ],
)
def test_a_rollback_that_is_run_in_any_case_is_left_alone(tmp_path: Path, decorator: str, body: str):
    assert sagas(tmp_path, decorator, body) == []


def test_the_timeout_of_a_registered_workflow_is_known_however_it_was_given(app: App):
    @app.step
    async def unbook() -> None: ...

    async def trip() -> None:
        durable.on_rollback(unbook)

    registered = app.workflow(name="trip", timeout="7d")(trip)
    sources = Sources()
    workflow = of_function("trip", registered.fn, sources, timed=registered.has_timeout)
    assert workflow is not None
    assert [found.line for found in examine([workflow], sources)] == [trip.__code__.co_firstlineno + 1]


def test_a_place_is_told_by_line_and_column(check: Check):
    (found,) = check("x = 1\nreturn x, time.time()", "import time")
    assert (Path(found.file).name, found.line, found.column) == ("flows.py", 8, 15)


@pytest.mark.parametrize("comment", ["# stepwell: ignore", "#stepwell:ignore  the reason"])
def test_a_comment_silences_its_line_and_no_other(check: Check, comment: str):
    (found,) = check(f"time.time()  {comment}\ntime.time()", "import time")
    assert found.line == 8
    assert check(f"try:\n    pass\nexcept:  {comment}\n    pass") == []


def test_functions_are_followed_through_modules_that_only_pass_them_on(check: Check):
    beside = {
        "shop/__init__": "from .sums import total as grand_total",
        "shop/sums": "from . import clock\ndef total():\n    return clock.now()",
        "shop/clock": "from time import time\ndef now():\n    return time()",
    }
    (found,) = check("shop.grand_total()", "import shop", **beside)
    assert found.through == ("total", "now")


def test_functions_that_call_each_other_end(check: Check):
    head = "import time\ndef one():\n    two()\ndef two():\n    one()\n    time.time()"
    (found,) = check("one()", head)
    assert found.through == ("one", "two")


def test_what_no_workflow_comes_by_is_not_looked_at(check: Check):
    assert check("pass", "import time\ndef other():\n    time.time()") == []


def test_installed_packages_are_not_read(check: Check):
    assert check("rich.print('a')\nclick.echo('a')", "import rich, click") == []


def test_a_package_without_an_init_file_is_the_users_too(check: Check):
    assert check("await parts.sums.total()", "import parts.sums", **{"parts/sums": "async def total(): ..."}) == []


def test_a_name_for_a_forbidden_function_is_as_forbidden(check: Check):
    at_the_top = "import time\nnow = time.time"
    (found,) = check("now()", at_the_top)
    assert found.line == 8
    assert [each.line for each in check("now = time.time\nnow()", "import time")] == [7, 8]


def test_a_function_is_found_by_itself():
    async def checkout() -> float:
        import time as clock

        return clock.time()

    sources = Sources()
    found = of_function("checkout", checkout, sources)
    assert found is not None
    (finding,) = examine([found], sources)
    assert finding.file.endswith("test_check_command.py")


# -- the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with an app of two workflows in it, one of them wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    wrong = "\n@app.workflow\nasync def late():\n    return parts.now()\n"
    (tmp_path / "checked_flows.py").write_text(workflow("return 1", "import checked_parts as parts") + wrong)
    (tmp_path / "checked_parts.py").write_text("import time\n\ndef now():\n    return time.time()\n")
    (tmp_path / "clean.py").write_text(workflow("return workflow.now()"))
    yield tmp_path
    for name in ("checked_flows", "checked_parts"):
        sys.modules.pop(name, None)


def test_the_workflows_of_an_app_are_read(here: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command_line(["check", "checked_flows:app"]) == 1
    said = capsys.readouterr()
    assert said.out == ("checked_parts.py:4:12: wrong: time.time(). Write workflow.now(). [checked_flows.late > now]\n")
    assert said.err == "stepwell: 2 workflows read: 1 found\n"


def test_files_are_read_without_being_imported(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "explodes.py").write_text(workflow("pass") + "raise SystemExit(7)\n")
    assert run_command_line(["check", "explodes.py", "checked_flows.py"]) == 1
    assert "checked_parts.py:4:12" in capsys.readouterr().out
    assert run_command_line(["check", "."]) == 1


def test_clean_is_exit_code_0(here: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command_line(["check", "clean.py"]) == 0
    assert capsys.readouterr().err == "stepwell: 1 workflow read: nothing found\n"


def test_json_has_everything(here: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command_line(["check", "--json", "checked_flows.py"]) == 1
    said: Any = json.loads(capsys.readouterr().out)
    assert said == {
        "workflows": ["checked_flows.checkout", "checked_flows.late"],
        "findings": [
            {
                "file": "checked_parts.py",
                "line": 4,
                "column": 12,
                "verdict": "wrong",
                "what": "time.time()",
                "instead": "workflow.now()",
                "workflow": "checked_flows.late",
                "through": ["now"],
            }
        ],
    }


@pytest.mark.parametrize("arguments", [[], ["none.py"], ["no_such_module:app"], ["broken.py"], ["--what", "clean.py"]])
def test_wrong_usage_is_exit_code_2(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]):
    (here / "broken.py").write_text("def (")
    assert run_command_line(["check", *arguments]) == 2
    assert capsys.readouterr().err


def test_people_get_a_table(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run_command_line(["check", "checked_flows.py"]) == 1
    said = capsys.readouterr().out
    assert "write instead" in said
    assert "workflow.now()" in said


FLOW = """
import time
from stepwell import App
app = App()

@app.workflow
async def late() -> float:
    return time.time()
"""


async def test_under_dev_the_same_is_refused_when_it_runs(process: Any, client: App, tmp_path: Path):
    (tmp_path / "late_flow.py").write_text(FLOW)
    async with process("dev", "late_flow.py", cwd=tmp_path) as dev:
        await dev.line("ready: ")
        run = await client.start("late_flow.late")
        with pytest.raises(RunFailed, match=r"late_flow\.py:8 in late.*workflow\.now\(\)"):
            await run.result(timeout=20)
