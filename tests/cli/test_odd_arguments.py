"""Odd arguments: each command refuses them in a sentence, with an exit code, and without a traceback of ours."""

from __future__ import annotations

import pytest
from conftest import Command, Process

from stepwell.cli.main import COMMANDS

LONG, NUL, NO_TEXT = "x" * 3000, "a\0b", "\udcff"
HUGE, BEYOND = 9_999_999_999_999_999_999, 2**31
ODD = {"long": LONG, "a NUL": NUL, "no UTF-8": NO_TEXT, "control": "\x1b[31m", "empty": "", "dots": ".."}
BAD_DSNS = {
    "dots": "postgresql://u:hunter2@../x",
    "a long label": f"postgresql://u:hunter2@{'a' * 64}/x",
    "a long host": f"postgresql://u:hunter2@{'a.' * 200}/x",
    "a wrong target": "postgresql://u:hunter2@h/x?target_session_attrs=master",
    "no port": "postgresql://u:hunter2@h:1,h:p/x",
    "a NUL": "postgresql://u:hunter2@h/%00",
    "a long name": f"postgresql://u:hunter2@127.0.0.1:1/{LONG}",
    "no scheme": "..",
}

TAKING_TEXT = [
    ("show", "TEXT"), ("explain", "TEXT"), ("history", "TEXT"), ("logs", "TEXT"), ("cancel", "TEXT", "--yes"),
    ("retry", "TEXT", "--yes"), ("pause", "TEXT"), ("resume", "TEXT"), ("signal", "TEXT", "x"),
    ("signal", "k", "TEXT"), ("update", "TEXT", "x", "--timeout", "1"), ("update", "k", "TEXT", "--timeout", "1"),
    ("fork", "TEXT", "--at", "1"), ("start", "TEXT"), ("start", "x", "--key", "TEXT"),
    ("start", "x", "--queue", "TEXT"), ("start", "x", "--tag", "a=TEXT"), ("start", "x", "--tag", "TEXT=1"),
    ("start", "x", "--unique-by", "TEXT"), ("start", "x", "--delay", "TEXT"), ("start", "x", "--input", "TEXT"),
    ("start", "x", "--app", "TEXT"), ("runs", "--name", "TEXT"), ("runs", "--queue", "TEXT"),
    ("runs", "--tag", "a=TEXT"), ("runs", "--tag", "TEXT=1"), ("runs", "--error", "TEXT"),
    ("runs", "--since", "TEXT"), ("runs", "--after", "TEXT"), ("runs", "--state", "TEXT"),
    ("runs", "--schema", "TEXT"), ("runs", "--dsn", "TEXT"), ("cancel", "--name", "TEXT", "--yes"),
    ("cancel", "--queue", "TEXT", "--yes"), ("queue", "pause", "TEXT"), ("queue", "resume", "TEXT"),
    ("queue", "set", "TEXT", "--concurrency", "1"), ("queue", "set", "m", "--rate", "TEXT"),
    ("queue", "set", "m", "--concurrency", "TEXT"), ("preflight", "TEXT"), ("check", "TEXT"), ("check", "TEXT.py"),
    ("replay", "TEXT", "shop:app"), ("replay", "k", "TEXT"), ("replay", "k", "TEXT.py"), ("bench", "TEXT"),
    ("bench", "--schema-name", "TEXT", "--yes"), ("migrate", "--schema", "TEXT"), ("doctor", "--schema", "TEXT"),
    ("TEXT",),
]  # fmt: skip
# Refused, as each of these is, or taken for a name that nobody has: no error of ours, whichever it is.
FINE = {0, 1, 2, 3}
TAKING_NUMBERS = [
    ("start", "x", "--priority", "N"), ("start", "x", "--delay", "N"), ("start", "x", "--input", "N"),
    ("runs", "--limit", "N"), ("runs", "--since", "Nd"), ("runs", "--since", "N-01-01"),
    ("queue", "set", "m", "--concurrency", "N"), ("queue", "set", "m", "--per-key", "N"),
    ("queue", "set", "m", "--rate", "N/s"), ("queue", "set", "m", "--rate", "1/Ns"), ("history", "k", "--tail", "N"),
    ("logs", "k", "--attempt", "N"), ("fork", "k", "--at", "N"), ("fork", "k", "--at", "-N"),
    ("replay", "k", "shop:app", "--until", "N"), ("preflight", "shop:app", "--limit", "N"),
    ("top", "--once", "--every", "N"), ("update", "k", "x", "--timeout", "N"), ("bench", "--runs", "N"),
    ("bench", "--rounds", "N"),
]  # fmt: skip


def ended_well(said) -> None:
    assert said.code in FINE
    assert "Traceback" not in said.err + said.out
    if said.code:
        assert said.err or said.out
        assert len(said.err) < 20_000


@pytest.mark.parametrize("arguments", TAKING_TEXT, ids=" ".join)
async def test_no_text_ends_a_command_with_a_traceback(stepwell: Command, client, arguments: tuple[str, ...]) -> None:
    await client.definition("x").options(key="k").start()
    for text in ODD.values():
        ended_well(await stepwell(*(each.replace("TEXT", text) for each in arguments)))


@pytest.mark.parametrize("arguments", TAKING_NUMBERS, ids=" ".join)
async def test_no_number_ends_a_command_with_a_traceback(stepwell: Command, client, arguments: tuple[str, ...]) -> None:
    await client.definition("x").options(key="k").start()
    for number in (HUGE, BEYOND, 10**12, 2**15):
        ended_well(await stepwell(*(each.replace("N", str(number)) for each in arguments)))


@pytest.mark.parametrize("name", BAD_DSNS)
@pytest.mark.parametrize(
    "arguments", [("runs",), ("doctor",), ("migrate",), ("bench", "--yes"), ("preflight", "shop:app")], ids=" ".join
)
async def test_a_bad_dsn_is_told_in_a_sentence(
    stepwell: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], name: str
) -> None:
    monkeypatch.setenv("STEPWELL_DSN", BAD_DSNS[name])
    said = await stepwell(*arguments)
    assert said.code == (4 if name == "a long name" else 2)
    assert "Traceback" not in said.err
    assert "hunter2" not in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("name", ["dots", "a wrong target", "no scheme"])
async def test_a_worker_tells_of_a_bad_dsn_in_a_sentence(process: Process, name: str) -> None:
    async with process("worker", "shop:app", STEPWELL_DSN=BAD_DSNS[name]) as worker:
        assert await worker.exit_code() == 2
    (line,) = worker.lines
    assert "shop.py:" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("arguments", [("--slots", str(HUGE)), ("--grace", str(10**12)), ("--queues", LONG)], ids=str)
async def test_a_worker_tells_of_a_setting_that_is_too_large(process: Process, arguments: tuple[str, str]) -> None:
    async with process("worker", "shop:app", *arguments) as worker:
        assert await worker.exit_code() == 2
    assert "Traceback" not in worker.output


def test_every_command_that_takes_something_is_tried() -> None:
    tried = {arguments[0] for arguments in [*TAKING_TEXT, *TAKING_NUMBERS]}
    assert set(COMMANDS) - tried == {"dev", "queues", "worker", "workers"}
