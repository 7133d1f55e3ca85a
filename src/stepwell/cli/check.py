"""`stepwell check`: would the workflows come out the same if they were told again?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from stepwell.cli.checking.examine import CheckedWorkflow, Finding, examine, in_file, of_function
from stepwell.cli.checking.sources import Sources
from stepwell.cli.exits import say
from stepwell.cli.loading import NoApp, load_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.printing import echo_json, plain
from stepwell.definitions.workflow import Workflow as Registered
from stepwell.operator.errors import Exit

_COLOURS = {"wrong": "red", "look": "yellow"}


@click.command()
@click.argument("places", metavar="APP|FILE…", nargs=-1, required=True)
@json_option
def check(places: Sequence[str], *, as_json: bool) -> int:
    """Read the source of workflows for what a replay could not repeat.

    Of an APP (module:app) every registered workflow; of a FILE or a directory, which is not imported, every
    function with @….workflow; and all functions of yours that they call. `# stepwell: ignore` on a line
    silences it. Exit code 1 if something was found.
    """
    sources = Sources()
    workflows = [workflow for place in places for workflow in _workflows(place, sources)]
    findings = examine(workflows, sources)
    if as_json:
        echo_json({"workflows": [each.name for each in workflows], "findings": findings})
    elif sys.stdout.isatty():
        _draw(findings)
    else:
        for each in findings:
            click.echo(plain(_line(each)))
    if not as_json:
        say(_summary(len(workflows), len(findings)))
    return Exit.FAILED if findings else Exit.DONE


def _workflows(place: str, sources: Sources) -> Iterator[CheckedWorkflow]:
    path = Path(place)
    # Not by the path: it raises an error where a name is too long for a file.
    if os.path.isdir(place) or (path.suffix == ".py" and os.path.isfile(place)):
        yield from _in_files(place, sorted(path.rglob("*.py")) if path.is_dir() else [path], sources)
        return
    for name, each in load_app(place).definitions.tasks.items():
        if isinstance(each, Registered):
            workflow = of_function(name, each.fn, sources, timed=each.has_timeout)
            if workflow is None:
                raise NoApp(place, f"the source of {name} is not there.")
            yield workflow


def _in_files(place: str, paths: Sequence[Path], sources: Sources) -> Iterator[CheckedWorkflow]:
    for path in paths:
        if sources.at(path) is None:
            raise NoApp(place, f"{path} cannot be read as Python.")
        yield from in_file(path, sources)


def _line(finding: Finding) -> str:
    where = f"{finding.file}:{finding.line}:{finding.column}"
    return f"{where}: {finding.verdict}: {finding.what}. Write {finding.instead}. [{_path(finding)}]"


def _path(finding: Finding) -> str:
    return " > ".join((finding.workflow, *finding.through))


def _summary(workflows: int, findings: int) -> str:
    read = "1 workflow" if workflows == 1 else f"{workflows} workflows"
    return f"{read} read: {findings or 'nothing'} found"


def _draw(findings: Sequence[Finding]) -> None:
    """Print findings for people. Nothing is cut: the remedy is what they came for."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not findings:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("place", "what", "write instead", "reached by"):
        table.add_column(head, header_style="dim", overflow="fold", no_wrap=head == "place")
    for each in findings:
        what = Text(plain(each.what), style=_COLOURS[each.verdict])
        place = f"{each.file}:{each.line}:{each.column}"
        table.add_row(Text(plain(place)), what, Text(plain(each.instead)), Text(plain(_path(each)), style="dim"))
    Console().print(table)
