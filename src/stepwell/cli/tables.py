"""Tables: columns as wide as they need for programs, and for people one that fits their terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from stepwell.cli.printing import COLOURS, coloured, plain

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
NARROWEST = 12
"""The width to which a column may be cut."""

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Heads:
    """The columns of a table. The first is what one copies, and is never cut."""

    names: tuple[str, ...]
    least: tuple[str, ...] = ()
    """Columns that are left out where there is no room, in this order."""


def echo_table(heads: Heads, rows: Rows) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(drawn(heads, rows))
        return
    shown = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads.names, *shown, strict=True)]
    for row in ([head.upper() for head in heads.names], *shown):
        line = (" " * GAP).join(coloured(cell.ljust(width)) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def drawn(heads: Heads, rows: Rows, *, title: str | None = None) -> Table:
    """Render for the width of this terminal."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    shown = [[plain(cell) for cell in row] for row in rows]
    natural = {head: max(map(cell_len, column)) for head, *column in zip(heads.names, heads.names, *shown, strict=True)}
    widths = fitted(natural, heads.least, shutil.get_terminal_size().columns)
    made = Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), title=title, title_justify="left", title_style="bold"
    )
    for head, width in widths.items():
        made.add_column(head, width=width, no_wrap=True, overflow="ellipsis", header_style="dim")
    kept = [number for number, head in enumerate(heads.names) if head in widths]
    for row in shown:
        made.add_row(*(Text(row[number], style=COLOURS.get(row[number], "")) for number in kept))
    return made


def fitted(natural: dict[str, int], least: Iterable[str], room: int) -> dict[str, int]:
    """Return the width of each column: the widest are cut first, and columns without room are left out."""
    widths, (first, *_) = dict(natural), natural
    leaving = iter(least)
    while sum(widths.values()) + GAP * (len(widths) - 1) > room:
        widest = max((head for head in widths if head != first), key=lambda head: widths[head], default=None)
        if widest is not None and widths[widest] > NARROWEST:
            widths[widest] -= 1
        elif (leaves := next(leaving, None)) is None:
            break
        else:
            widths.pop(leaves, None)
            # There is room again for what was cut.
            widths = {head: natural[head] for head in widths}
    return widths
