"""The figures as two tables in Markdown: what everyone reached, and whether the goals are met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.candidate import Candidate

POSTGRES_PEERS = ("pgqueuer", "procrastinate", "dbos", "absurd", "chancy")
# The heading, the figures in it, and how each is divided to be read.
COLUMNS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("start in bulk /s", ("bulk",), 1),
    ("one by one, 1 caller /s", ("single",), 1),
    ("100 callers /s", ("crowd",), 1),
    ("drain, 1 process /s", ("drain",), 1),
    ("2 processes /s", ("drain2",), 1),
    ("long backlog, 1 process /s", ("backlog",), 1),
    ("2 processes /s", ("backlog2",), 1),
    ("beside 1 M finished /s", ("finished",), 1),
    ("beside 1 M scheduled /s", ("scheduled",), 1),
    ("start → body p50 ms", ("calm body 50",), 1),
    ("p95 / p99 ms", ("calm body 95", "calm body 99"), 1),
    ("start → result p50 ms", ("calm result 50",), 1),
    ("p95 / p99 ms", ("calm result 95", "calm result 99"), 1),
    ("at half load: body p50 / p95 / p99 ms", ("loaded body 50", "loaded body 95", "loaded body 99"), 1),
    ("result p50 / p95 / p99 ms", ("loaded result 50", "loaded result 95", "loaded result 99"), 1),
    ("memory per worker MB", ("rss",), 1e6),
    ("worker CPU µs per task", ("worker_us",), 1),
    ("server CPU µs per task", ("server_us",), 1),
    ("written bytes per task", ("written",), 1),
    ("steps of 10-step workflows /s", ("steps",), 1),
    ("tasks in place of steps /s", ("tasks",), 1),
    ("one long workflow, ms per step", ("lone",), 1),
)


def number(value: float) -> str:
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2f}"


def cell(candidate: Candidate, names: Sequence[str], by: float) -> str:
    """Medians; the spread where the cell is of one figure."""
    found = [[value / by for value in candidate.figures[name]] for name in names if candidate.figures.get(name)]
    if not found:
        return "–"
    medians = " / ".join(number(statistics.median(values)) for values in found)
    if len(found) > 1 or len(found[0]) < 2:
        return medians
    return f"{medians} [{number(min(found[0]))}–{number(max(found[0]))}]"


def figures(candidates: Sequence[Candidate]) -> str:
    """One line per contender; columns that nobody has a figure for are left out."""
    columns = [c for c in COLUMNS if any(candidate.figures.get(name) for candidate in candidates for name in c[1])]
    head = ["contender", "kept", *(column[0] for column in columns)]
    lines = [head, ["---", "---", *("--:" for _ in columns)]]
    for candidate in candidates:
        name = f"{candidate.name} {candidate.facts.get('version', '')}".strip()
        cells = [cell(candidate, names, by) for _, names, by in columns]
        lines.append([name, str(candidate.facts.get("keeps", "–")), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def notes(candidates: Sequence[Candidate]) -> str:
    """Why there are dashes, and who was given less."""
    said = []
    for candidate in candidates:
        given = candidate.kept.get("backlog", 0)
        if given and given < candidate.sizes.backlog:
            said.append(f"- {candidate.name}: its long backlog was of {given:,}: it starts too slowly to make more.")
        for figure, reason in candidate.reasons.items():
            if not figure.startswith("image "):
                often = " failed in some rounds" if candidate.figures.get(figure) else ""
                said.append(f"- {candidate.name}, {figure}{often}: {last_line(reason)}")
    return "\n".join(said)


def last_line(reason: str) -> str:
    return next((line.strip()[:200] for line in reversed(reason.splitlines()) if line.strip()), "–")


# -- the goals


@dataclass
class Goal:
    words: str
    bound: float
    reached: float | None
    at_most: bool = False
    strictly: bool = False

    @property
    def met(self) -> str:
        if self.reached is None:
            return "–"
        better = self.reached < self.bound if self.at_most else self.reached > self.bound
        return "yes" if better or (self.reached == self.bound and not self.strictly) else "**no**"

    def line(self) -> str:
        sign = ("<" if self.at_most else ">") if self.strictly else ("≤" if self.at_most else "≥")
        reached = "–" if self.reached is None else number(self.reached)
        return f"| {self.words} | {sign} {self.bound:g} | {reached} | {self.met} |"


class Goals:
    """Ratios of the same round, and their median: a machine that becomes slower does so for both."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._by_key = {candidate.key: candidate for candidate in candidates}
        self._peers = [key for key in self._by_key if key not in ("stepwell", "limit")]

    def values(self, key: str, figure: str) -> list[float]:
        candidate = self._by_key.get(key)
        return candidate.figures.get(figure, []) if candidate else []

    def median(self, key: str, figure: str) -> float | None:
        values = self.values(key, figure)
        return statistics.median(values) if values else None

    def ratio(self, ours: str, key: str, theirs: str) -> float | None:
        """Our figure by theirs, or by another of our own. Of medians, if one of them has no figure of some round."""
        a, b = self.values("stepwell", ours), self.values(key, theirs)
        if not a or not b:
            return None
        if len(a) != len(b):
            return statistics.median(a) / statistics.median(b)
        return statistics.median(one / other for one, other in zip(a, b, strict=True))

    def least(self, figure: str, keys: Sequence[str], *, least: bool = True) -> float | None:
        ratios = [ratio for key in keys if (ratio := self.ratio(figure, key, figure)) is not None]
        return (min if least else max)(ratios) if ratios else None

    def tasks(self) -> list[Goal]:
        postgres = [key for key in POSTGRES_PEERS if key in self._by_key]
        return [
            Goal("drain, 1 process : PgQueuer", 2, self.ratio("drain", "pgqueuer", "drain")),
            Goal("drain, 1 process : Celery", 20, self.ratio("drain", "celery", "drain")),
            Goal("drain, 1 process : Procrastinate", 30, self.ratio("drain", "procrastinate", "drain")),
            Goal("drain, 1 process : limit", 0.6, self.ratio("drain", "limit", "drain")),
            Goal("drain, 2 processes : PgQueuer's two", 1.75, self.ratio("drain2", "pgqueuer", "drain2")),
            Goal("drain, 2 processes : our one", 1, self.ratio("drain2", "stepwell", "drain"), strictly=True),
            Goal("start in bulk : PgQueuer", 1, self.ratio("bulk", "pgqueuer", "bulk")),
            Goal("start in bulk : limit", 0.7, self.ratio("bulk", "limit", "bulk")),
            Goal("one by one, 1 caller : the best Postgres peer", 1, self.least("single", postgres)),
            Goal("100 callers : our one caller", 5, self.ratio("crowd", "stepwell", "single")),
            Goal("start → body p50 : limit", 1.5, self.ratio("calm body 50", "limit", "calm body 50"), at_most=True),
            Goal("start → body p99, ms", 10, self.median("stepwell", "calm body 99"), at_most=True),
            Goal(
                "start → result p50 : the best peer",
                1,
                self.least("calm result 50", self._peers, least=False),
                at_most=True,
                strictly=True,
            ),
            Goal("beside 1 M finished : empty", 0.9, self.ratio("finished", "stepwell", "drain")),
            Goal("beside 1 M scheduled : empty", 0.9, self.ratio("scheduled", "stepwell", "drain")),
            Goal("beside an old transaction : empty", 0.5, self.ratio("old", "stepwell", "drain")),
            Goal("an idle worker, % of a core", 1, self.median("stepwell", "idle core"), at_most=True),
            Goal("an idle worker, statements/s", 2, self.median("stepwell", "idle statements"), at_most=True),
            Goal("cost of a run, 1 M pending : 1 k", 1.15, self.ratio("cost 1M", "stepwell", "cost 1k"), at_most=True),
        ]

    def workflows(self) -> list[Goal]:
        asleep = self.ratio("asleep all", "stepwell", "asleep few")
        return [
            Goal("steps : Absurd", 8, self.ratio("steps", "absurd", "steps")),
            Goal("steps : DBOS", 25, self.ratio("steps", "dbos", "steps")),
            Goal("tasks in place of steps : Absurd's steps", 2, self.ratio("tasks", "absurd", "steps")),
            Goal("a step of one long workflow : a bare commit", 2, self.ratio("lone", "limit", "lone"), at_most=True),
            Goal("the same : Absurd", 1, self.ratio("lone", "absurd", "lone"), at_most=True, strictly=True),
            Goal("40 tasks one after another, s", 0.15, self.median("stepwell", "chain"), at_most=True),
            Goal("replay, 20 k events : 10 k", 2.2, self.ratio("replay2", "stepwell", "replay"), at_most=True),
            Goal("replay of 10 k events, s", 1, self.median("stepwell", "replay"), at_most=True, strictly=True),
            Goal("memory with 10 k asleep : 2 k, twice what is kept alive", 1.1, asleep, at_most=True),
            Goal("rows of a sleeper in runs", 1, self.median("stepwell", "asleep runs"), at_most=True),
            Goal("and elsewhere, but for its events", 0, self.median("stepwell", "asleep rows"), at_most=True),
            Goal("10 k tasks by one gather : plain drain", 0.5, self.ratio("fan", "stepwell", "plain")),
        ]


def goals(candidates: Sequence[Candidate], what: set[str]) -> str:
    """Of workflows only where they were asked for, and only them where nothing else was."""
    all_of_them = Goals(candidates)
    asked = all_of_them.tasks() if what != {"workflows"} else []
    asked += all_of_them.workflows() if "workflows" in what else []
    head = ["| goal | bound | reached | met |", "| --- | --: | --: | --- |"]
    return "\n".join([*head, *(goal.line() for goal in asked)])


def ours(candidate: Candidate) -> str:
    """What only Stepwell is asked."""
    rows = {
        "drain beside an old transaction /s": "old",
        "which had been open for so many minutes": "old minutes",
        "idle worker, % of a core": "idle core",
        "idle worker, statements/s": "idle statements",
        "database µs per run, 1 k pending": "cost 1k",
        "100 k pending": "cost 100k",
        "1 M pending": "cost 1M",
        "40 tasks of a workflow one after another, s": "chain",
        "drain of plain tasks /s": "plain",
        "10 k tasks by one gather /s": "fan",
        "replay of 10 k events, s": "replay",
        "20 k events, s": "replay2",
        "worker with 2 k workflows asleep, MB": "asleep few",
        "10 k asleep, MB": "asleep all",
        "rows of a sleeper in runs": "asleep runs",
        "in events": "asleep events",
        "in all other tables": "asleep rows",
    }
    lines = [
        f"| {words} | {cell(candidate, (name,), 1)} |" for words, name in rows.items() if name in candidate.figures
    ]
    return "\n".join(["| of Stepwell only | |", "| --- | --: |", *lines]) if lines else ""
