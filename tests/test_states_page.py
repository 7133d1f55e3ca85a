"""`docs/states.md` is drawn from the table of moves: STEPWELL_WRITE_DOCS=1 draws it anew."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stepwell.model.states import FINISHED, LIVE, MOVES, STARTS, State

PAGE = Path(__file__).parents[1] / "docs" / "states.md"
HEAD = """\
# The states of a run

This page shows every move that a run can make. `tests/test_states_page.py` draws it from `model/states.py`. Each arrow
has the name of its statement in `store/sql/`. There are no other moves: a test runs each statement against every state,
where it either moves the run as drawn here or changes nothing.

"""


def picture() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for statement, targets in STARTS.items():
        for target in targets:
            arrows.setdefault(("[*]", target.value), []).append(statement)
    for statement, moves in MOVES.items():
        for source, targets in moves.items():
            for target in targets:
                arrows.setdefault((source.value, target.value), []).append(statement)
    order = ["[*]", *(state.value for state in State)]
    for source, target in sorted(arrows, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1]))):
        lines.append(f"    {source} --> {target}: {', '.join(arrows[source, target])}")
    lines += [f"    {state.value} --> [*]" for state in State if state in FINISHED]
    return "\n".join([*lines, "```"])


def table() -> str:
    rows = ["| statement | from | to |", "|---|---|---|"]
    rows += [f"| `{name}` | | {_listed(targets)} |" for name, targets in STARTS.items()]
    rows += [
        f"| `{name}` | {_listed(moves)} | {_listed(state for targets in moves.values() for state in targets)} |"
        for name, moves in MOVES.items()
    ]
    return "\n".join(rows)


def _listed(states: Iterable[State]) -> str:
    given = set(states)
    return ", ".join(state.value for state in State if state in given)


def reached() -> set[State]:
    moved = {state for moves in MOVES.values() for targets in moves.values() for state in targets}
    return moved.union(*STARTS.values())


def page() -> str:
    sentences = [
        f"A live run is {_listed(LIVE)}: a row of `runs`.",
        f"A finished one is {_listed(FINISHED)}: a row of `finished_runs`, which never changes.",
    ]
    if unreached := set(State) - reached():
        sentences.append(f"No statement leads to {_listed(unreached)} yet.")
    return HEAD + "\n".join(sentences) + f"\n\n{picture()}\n\n{table()}\n"


def test_the_page_of_states_is_drawn_from_the_table_of_moves() -> None:
    if os.environ.get("STEPWELL_WRITE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "draw it with STEPWELL_WRITE_DOCS=1; look at the difference"
