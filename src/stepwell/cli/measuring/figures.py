"""Figures: what was measured, and a sentence on what it means."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

LIMIT = " limit"
PERCENTS = (50, 95, 99)

MOSTLY = 0.4
"""The share of a start that its commit must have, to be what bounds it."""
NEAR = 0.7
"""The share of the limit from which on the database bounds a drain."""
MORE = 1.25
"""The factor by which two workers must drain more than one, for more workers to help."""


@dataclass(frozen=True, slots=True)
class FigureLine:
    name: str
    says: str
    unit: str
    has_limit: bool = True


LINES = (
    FigureLine("bulk", "start, in bulk", "runs/s"),
    FigureLine("single", "start, 1 caller", "runs/s"),
    FigureLine("crowd", "start, 100 callers", "runs/s"),
    FigureLine("drain", "drain, 1 process", "runs/s"),
    FigureLine("drain2", "drain, 2 processes", "runs/s"),
    *(FigureLine(f"body{percent}", f"start → body, p{percent}", "ms") for percent in PERCENTS),
    *(FigureLine(f"result{percent}", f"start → result, p{percent}", "ms") for percent in PERCENTS),
    FigureLine("round_trip", "a round trip", "ms", has_limit=False),
    FigureLine("commit", "a commit", "ms", has_limit=False),
    FigureLine("wake", "a NOTIFY, heard", "ms", has_limit=False),
)


@dataclass(slots=True)
class Figures:
    """Every value that was measured, by the name of its line; those of the limit with ` limit` behind it."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str) -> float:
        return self.median(name) / self.median(name + LIMIT)

    def cell(self, name: str) -> str:
        values = self.values[name]
        spread = f" [{number(min(values))}–{number(max(values))}]" if len(values) > 1 else ""
        return number(self.median(name)) + spread

    def facts(self) -> dict[str, Any]:
        """Return the figures for programs."""
        told: dict[str, Any] = {}
        for line in LINES:
            told[line.name] = {"what": line.says, "unit": line.unit, **self._summary(line.name)}
            if line.has_limit:
                told[line.name] |= {"limit": self._summary(line.name + LIMIT), "ratio": self.ratio(line.name)}
        return told

    def _summary(self, name: str) -> dict[str, Any]:
        values = self.values[name]
        return {"median": self.median(name), "lowest": min(values), "highest": max(values), "values": values}

    def verdict(self) -> str:
        return f"{self._of_starts()} {self._of_drains()}"

    def _of_starts(self) -> str:
        trip, commit, start = self.median("round_trip"), self.median("commit"), 1000 / self.median("single")
        if commit < MOSTLY * start:
            bound = "by the processors, not by the disk or the network"
            return f"A commit takes {number(commit)} ms here: starts one by one are bound {bound}."
        if trip > commit / 2:
            return f"A round trip takes {number(trip)} ms here: starts one by one are bound by the network."
        return f"A commit takes {number(commit)} ms here: starts one by one are bound by the disk."

    def _of_drains(self) -> str:
        gain = self.median("drain2") / self.median("drain")
        if gain >= MORE:
            return f"A second worker process drains {number(gain)} times as much: more of them help."
        near = max(self.ratio("drain"), self.ratio("drain2")) >= NEAR
        bound = "the database is the bound" if near else "the processors of this machine are the bound"
        return f"A second worker process drains {'little' if gain > 1 else 'no'} more: {bound}."


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2f}"
