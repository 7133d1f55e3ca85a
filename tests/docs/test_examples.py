"""Every example in the docs is run: what a reader copies works, and what it says it prints is what it prints.

```python            run, in the order of the page, in one module that the page calls `shop`; `await` is allowed
```python file=x.py  written to x.py, which later blocks can import (for executor="process")
```sql               run against the same database
```console, ```sh    the commands and options exist
no-run               after any of these: not run; an HTML comment right above says why

`print(x)  # -> 8` is held to its word, and so is an expression alone on its line (by its repr). `…` stands for
anything. What a line prints more than once is compared with ` | ` in between.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import asyncpg
import click
import pytest

from stepwell import App
from stepwell.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
LINKED = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MODULE = "shop"

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAYS = re.compile(r"# -> (.+?)\s*$")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    info: str
    text: str
    line: int
    """Of its first line, in the page."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        found = re.search(r"file=(\w+\.py)", self.info)
        return found[1] if found else None

    @property
    def is_run(self) -> bool:
        return "no-run" not in self.info.split()

    def expectations(self) -> dict[int, str]:
        """What each line of the page says that it prints."""
        said = ((line, _SAYS.search(text)) for line, text in enumerate(self.text.splitlines(), self.line))
        return {line: found[1] for line, found in said if found}


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, found[1], found[2].strip(), found[3], text.count("\n", 0, found.start(3)) + 1)
        for found in _FENCE.finditer(text)
    ]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Printed:
    """Stands in for `print`, and remembers what each line of the page has printed."""

    def __init__(self, page: Path) -> None:
        self._page = str(page)
        self._by_line: dict[int, list[str]] = {}

    def __call__(self, *values: object, sep: str = " ", **_rest: Any) -> None:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != self._page:
            frame = frame.f_back
        if frame is not None:
            self._by_line.setdefault(frame.f_lineno, []).append(sep.join(map(str, values)))

    def check(self, block: Block) -> None:
        for line, said in block.expectations().items():
            told = " | ".join(self._by_line.get(line, ["nothing"]))
            pattern = ".*".join(map(re.escape, said.split("…")))
            assert re.fullmatch(pattern, told, re.DOTALL), f"{named(block.page)}:{line} says {said!r}, prints {told!r}"


class Shown(ast.NodeTransformer):
    """Prints the expressions that stand alone on a line with `# ->`, and makes a script one that can be awaited:
    it is the main one, and its `asyncio.run(x)` is `await x`, because here a loop runs already."""

    def __init__(self, lines: set[int]) -> None:
        self._lines = lines

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "__name__ == '__main__'":
            node.test = ast.copy_location(ast.Constant(True), node.test)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "asyncio.run":
            return ast.fix_missing_locations(ast.copy_location(ast.Expr(ast.Await(value.args[0])), node))
        prints = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
        if node.end_lineno in self._lines and not prints:
            text = ast.Call(ast.Name("repr", ast.Load()), [value], [])
            shown = ast.Expr(ast.Call(ast.Name("print", ast.Load()), [text], []))
            return ast.fix_missing_locations(ast.copy_location(shown, node))
        return node


async def run_python(block: Block, namespace: dict[str, Any]) -> None:
    source = "\n" * (block.line - 1) + block.text
    tree = Shown(set(block.expectations())).visit(ast.parse(source, str(block.page)))
    code = compile(tree, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = FunctionType(code, namespace)()
    if inspect.iscoroutine(result):
        await result


async def run_sql(block: Block, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(block.text)
    finally:
        await connection.close()


def failed_at(block: Block, error: BaseException) -> str:
    """Where in the page it failed, as an editor can open it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(block.page)]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    line = line or (frames[-1].lineno if frames else block.line)
    return f"{named(block.page)}:{line}: {type(error).__name__}: {error}"


async def run_page(page: Path, dsn: str, files: Path) -> None:
    module = ModuleType(MODULE)
    printed = Printed(page)
    module.__dict__["print"] = printed
    sys.modules[MODULE] = module
    handlers = {logger: logger.handlers[:] for logger in loggers()}
    try:
        for block in blocks(page):
            if not block.is_run:
                continue
            try:
                if block.file is not None:
                    (files / block.file).write_text(block.text)
                    sys.modules.pop(Path(block.file).stem, None)  # another test's of the same name
                elif block.language == "python":
                    await run_python(block, module.__dict__)
                    printed.check(block)
                elif block.language == "sql":
                    await run_sql(block, dsn)
            except AssertionError:
                raise
            except BaseException as error:
                raise AssertionError(failed_at(block, error)) from error
    finally:
        for app in [value for value in vars(module).values() if isinstance(value, App)]:
            await asyncio.to_thread(app.portal.close)
        for logger in loggers():
            logger.handlers[:] = handlers.get(logger, [])
        forget(files)


def loggers() -> list[logging.Logger]:
    return [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]


def forget(files: Path) -> None:
    """Another page may have a module of the same name."""
    for name in [MODULE, *(path.stem for path in files.glob("*.py"))]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", PAGES, ids=named)
async def test_the_examples_of_a_page_do_what_it_says(
    page: Path, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_DSN", dsn)
    monkeypatch.syspath_prepend(str(tmp_path))
    await run_page(page, dsn, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_is_not_run_says_why(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks(page):
        if not block.is_run:
            above = lines[block.line - 3]
            assert re.fullmatch(r"<!-- .{10,} -->", above), f"{block.place} is not run, and nothing above says why"


def command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    for block in blocks(page):
        if block.language in ("console", "sh"):
            for line, text in enumerate(block.text.splitlines(), block.line):
                if text.removeprefix("$ ").startswith(("stepwell ", "./dev ")):
                    words = shlex.split(text.removeprefix("$ "), comments=True)
                    end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", "&")), len(words))
                    yield f"{named(page)}:{line}", words[:end]


def unknown_in(words: list[str]) -> list[str]:
    """What a command line names that there is not."""
    program, name, *rest = words
    if program == "./dev":
        known = re.findall(r"^    ([\w| -]+)\)$", (ROOT / "dev").read_text(), re.MULTILINE)
        return [] if name in " ".join(known) else [name]
    group = click.Context(cli)
    command = cli if name.startswith("-") else cli.get_command(group, name)
    if isinstance(command, click.Group) and command is not cli and rest:
        name, *rest = rest
        command = command.get_command(group, name)
    if command is None:
        return [name]
    options = {option for each in command.get_params(group) for option in (*each.opts, *each.secondary_opts)}
    given = [name, *rest] if command is cli else rest
    return [word for word in given if word.startswith("-") and word.split("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = {place: unknown for place, words in command_lines(page) if (unknown := unknown_in(words))}
    assert wrong == {}


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


WRONG = {
    "print(1 + 1)  # -> 3": "says '3', prints '2'",
    "1 + 1  # -> 3": "says '3', prints '2'",
    "if False:\n    print(1)  # -> 1": "prints 'nothing'",
    "x = 1\nraise ValueError('no')": "page.md:3: ValueError: no",
    "await asyncio.sleep(0)": "page.md:2: NameError",
    "def": "page.md:2: SyntaxError",
}


@pytest.mark.parametrize(("text", "told"), WRONG.items(), ids=WRONG.values())
async def test_a_wrong_example_is_told_with_its_page_and_line(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{text}\n```\n")
    with pytest.raises(AssertionError, match=re.escape(told)):
        await run_page(page, "", tmp_path)
