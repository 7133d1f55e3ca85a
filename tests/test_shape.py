"""The house rules that a program can check: sizes, words, public names, and what may not be done.

Every exception from a rule stands in a dict with its reason. An excuse that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import pickle
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from inspect import getmembers, isclass, ismodule
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import stepwell
from stepwell.model import errors
from stepwell.model.errors import StepwellError
from stepwell.model.run import Glimpse
from stepwell.model.states import State
from stepwell.store.statements import load

PACKAGE = Path(stepwell.__file__).parent
SQL = PACKAGE / "store" / "sql"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

FILE_LINES, FUNCTION_LINES, POSITIONAL, STATEMENT_LINES = 600, 50, 5, 40

WORDS = {
    # No word for "I did not find a name" …
    "manager", "helper", "helpers", "util", "utils", "common", "misc", "stuff",
    # … and no second word for a thing that has one: docs/glossary.md.
    "job", "jobs", "dag", "activity", "activities", "memo", "execution", "instance", "enqueue", "dequeue",
    "defer", "submit", "status", "phase", "payload", "payloads", "ack", "nack", "retries", "subtask", "alarm",
    "journal", "beat", "periodic", "consumer", "runner", "daemon", "master", "dedup", "notify", "visibility",
    "activation",
}  # fmt: skip

# Excuses: "file" or "file:name" -> reason.
LONG_STATEMENTS = {
    "claim_runs": "one round trip finds the queues, skips the paused, locks and takes: the plan tests need it whole",
    "claim_limited_runs": "what is running must be counted, and what is claimed be counted in, in one statement",
    "advance_turns": "a turn's events, what it took and where it leaves its run: all of it, or none",
    "exchange_runs": "one round trip and one commit complete what is done and claim what is next: the hot path",
}
IMPORTS_IN_FUNCTIONS = {
    "contrib/": "a library that is not installed is asked for where it is used, with a word on how to install it",
    "cli/": "a command that prints no table and runs no loop starts without rich and uvloop",
}
BROAD_EXCEPTS = {
    "app.py:_open": "closes what it opened, and raises again",
    "cli/main.py": "the edge: an error becomes a sentence and an exit code",
    "cli/loading.py": "importing the user's module runs the user's code",
    "cli/worker.py": "a worker that ends badly is told once, with its exit code",
    "codec/signature.py": "annotations, conversions and constructors are the user's code, and may raise anything",
    "worker/lease.py:_live": "whatever ends the lease's thread is told to the worker, which ends with it",
    "worker/lease.py:_sample": "a sample is only looked at: whatever keeps it from being written must cost no lease",
    "codec/annotations.py": "an annotation is an expression of the user's, and may raise anything",
    "codec/faults.py:is_same": "compares by the user's own __eq__",
    "executors/base.py:_text_of": "str() of the user's own exception",
    "executors/child.py": "user code in a process of its own: whatever it raises is the answer",
    "executors/process.py:_call": "kills the child of a call that is given up, and raises again",
    "executors/thread.py": "user code in a thread: whatever it raises is the answer",
    "services/service.py:_for_ever": "a service goes on; the error is logged with its traceback",
    "store/connections.py:take": "lets go of its place, and raises again",
    "store/pool.py": "rolls back or hangs up, and raises again",
    "services/leader.py:run": "leadership only saves work: without it nothing is wrong",
    "client/start_batches.py:_commit": "a group that is refused is started one by one, each caller hears of its own",
    "worker/first_steps.py:_stretch": "first step of user code: whatever it raises is its outcome",
    "worker/first_steps.py:_run": "whatever happens to an attempt ends as its outcome, and no run is left running",
    "worker/claiming/lanes.py:_exchange": "what an exchange did not get through is settled apart, none is dropped",
    "worker/claiming/lanes.py:_look": "says that the look failed, and raises again",
    "worker/worker.py:run": "records what is known before it ends by an error, and raises again",
    "worker/first_steps.py:__await__": "what is thrown at the task is thrown into the body that has it to itself",
    "executors/base.py:code_text": "an attribute of the user's own exception",
    "executors/base.py:traceback_text": "frames and notes of the user's own exception",
    "store/embedded.py:ensure": "lets go of its hold, and raises again",
    "sync.py": "an error of the loop's thread is raised in the caller's",
    "hooks/pump.py": "hooks are the user's code: whatever one raises is logged, and ends there",
    "telemetry.py:tell": "a listener is the user's code, and must not hurt the work it listens to",
    "context/log_capture.py:emit": "the text of a record is made by the user's own objects; logging tells of it",
    "worker/notes.py:_write_for_ever": "nothing that a body says may end a worker: it is logged, and left out",
    "context/transaction.py:own_tx": "whatever ends the user's block takes its transaction back, and is raised again",
    "store/lent.py:take": "hangs up, and raises again",
    "worker/ledger.py:_record": "whatever the server has against the user's transaction is its attempt's outcome",
    "worker/ledger.py:_looked_up": "a look that fails is repeated, whatever it failed of, and no outcome is dropped",
    "worker/lent.py:_write": "tells whose fault it is, and raises again",
    "worker/lent.py:blaming_data": "tells whose fault it is, and raises again",
    "worker/ledger.py:_settle": "a group the database refuses is settled one by one, and no outcome is dropped",
    "worker/run_task.py:run_task": "user code: whatever it raises is its outcome",
    "worker/turns/run_step.py": "user code: whatever it raises is its outcome",
    "worker/turns/run_turn.py:_go": "whatever is raised in a turn ends it, and is raised where it is awaited",
    "concurrency/group_commit.py:_fly": "whatever became of a group is the answer to everyone in it",
    "worker/turns/turns.py:_replay": "ends the code that does not fit, and raises again",
    "worker/turns/writes.py:_until_written": "a write that fails for any other reason than its data is repeated",
    "worker/turns/writes.py:patiently": "a look that fails is repeated: no run fails for it",
    "worker/turns/writes.py:_write_group": "a group the database refuses is written one by one, and no turn is dropped",
    "worker/turns/turns.py:run_turn": "whatever ends a turn ends its code here, and is raised again",
    "replay/": "user code: whatever it raises, also while it is ended, is its own affair",
}
CLOCKS = {
    "replay/clocks.py:now": "what a library asks for that runs outside of a workflow",
    "cli/": "ages on the screen, and how far this machine's clock is off: nothing is decided by them",
    "hooks/events.py:_now": "tells people when; nothing is decided by it",
    "model/ids.py": "an id is made by the caller, before the round trip; no deadline is compared with it",
    "operator/doctor.py:examine": "how far the two clocks are apart is the question",
}
RANDOM = {
    "context/workflow.py": "the type of workflow.random",
    "replay/replay.py": "seeded by the run: the same numbers whenever it is told again",
    "engine/settle.py": "the noise that spreads delays; it names nothing",
    "worker/claiming/frontier.py": "which of too many busy queues come first; it names nothing",
}
COMPOSED_SQL = {
    "store/migrate.py:_record": "a number and a name from our own file names, checked by their pattern",
}
NOT_YET = {
    "InvalidGraph", "ALL", "ANY", "QUORUM",
}  # fmt: skip

# What users were promised that they can import.
PROMISED = {
    "App", "Retry", "Call", "Run", "RunInfo", "current", "Snooze", "Fatal", "RunError", "StepwellError", "UsageError",
    "DuplicateName", "UnknownName", "NotEncodable", "InvalidSetting", "KeyConflict", "StateError", "NotFound",
    "AlreadyFinished", "ClaimLost", "RunFailed", "RunCancelled", "RunExpired", "Unavailable",
    "Nondeterminism", "workflow",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A place in the package: `inside` is the function around it."""

    file: str
    line: int
    inside: str
    node: Any

    def __str__(self) -> str:
        return f"src/stepwell/{self.file}:{self.line} in {self.inside or 'module'}"


@cache
def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def walk() -> Iterator[Found]:
    """Every node of the package, with the name of the function around it."""
    for file, tree in trees().items():
        unseen: list[tuple[ast.AST, str]] = [(tree, "")]
        while unseen:
            node, inside = unseen.pop()
            yield Found(file, getattr(node, "lineno", 1), inside, node)
            within = node.name if isinstance(node, FUNCTIONS) else inside
            unseen += [(child, within) for child in ast.iter_child_nodes(node)]


def judge(found: Iterable[Found], excuses: dict[str, str], rule: str) -> None:
    """Every place found has an excuse, and every excuse a place."""
    used, wrong = set(), []
    for place in found:
        keys = [key for key in excuses if f"{place.file}:{place.inside}" == key or place.file == key
                or (key.endswith("/") and place.file.startswith(key))]  # fmt: skip
        used.update(keys)
        if not keys:
            wrong.append(str(place))
    assert not wrong, f"{rule}:\n" + "\n".join(wrong)
    # The command line may do without its excuses.
    assert {key for key in excuses if not key.startswith("cli/")} <= used, f"{rule}: excuses that nothing needs"


def functions() -> Iterator[tuple[str, Any]]:
    return ((place.file, place.node) for place in walk() if isinstance(place.node, FUNCTIONS))


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def called(node: Any) -> str:
    """The dotted name that a call calls, as far as it is one."""
    if not isinstance(node, ast.Call):
        return ""
    parts, at = [], node.func
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join(reversed([*parts, at.id] if isinstance(at, ast.Name) else [*parts, "?"]))


def imported(node: Any) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


# -- sizes


def test_no_file_is_longer_than_can_be_read_in_one_sitting() -> None:
    files = [*PACKAGE.rglob("*.py"), *(path for path in SQL.glob("*.sql") if path.name != "schema.sql")]
    sizes = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in files}
    assert {name: size for name, size in sizes.items() if size > FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    def length(function: Any) -> int:
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        return body[-1].end_lineno - body[0].lineno + 1 if body else 0

    sizes = {f"{file}:{function.name}": length(function) for file, function in functions()}
    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES} == {}


def test_what_is_not_obvious_at_the_call_is_a_keyword() -> None:
    def positional(function: Any) -> int:
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    counts = {f"{file}:{function.name}": positional(function) for file, function in functions()}
    assert {name: count for name, count in counts.items() if count > POSITIONAL} == {}


# -- words


def test_one_word_per_thing_in_the_names_of_files_classes_functions_and_statements() -> None:
    names = {f"{file} (file)": Path(file).stem for file in trees()}
    for place in walk():
        if isinstance(place.node, (*FUNCTIONS, ast.ClassDef)):
            names[f"{place.file}:{place.line}"] = place.node.name
    names |= {f"{name} (statement)": name for name in load("stepwell")}
    assert {where: name for where, name in names.items() if words_of(name) & WORDS} == {}


# -- what may not be done


def test_imports_stand_at_the_head_of_their_file() -> None:
    found = (place for place in walk() if place.inside and isinstance(place.node, ast.Import | ast.ImportFrom))
    judge(found, IMPORTS_IN_FUNCTIONS, "an import inside a function")


def test_nothing_stored_or_received_is_ever_run_as_code() -> None:
    banned = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
    found = [
        place
        for place in walk()
        if imported(place.node) & banned or called(place.node) in {"eval", "exec", "compile", "__import__"}
    ]
    judge(found, {}, "pickle, marshal, shelve, eval or exec")


def test_time_is_the_databases_and_durations_are_monotonic() -> None:
    clocks = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    found = [place for place in walk() if ".".join(called(place.node).split(".")[-2:]) in clocks]
    found += [
        place
        for place in walk()
        if isinstance(place.node, ast.ImportFrom)
        and place.node.module == "time"
        and {"time", "time_ns"} & {alias.name for alias in place.node.names}
    ]
    judge(found, CLOCKS, "a machine's own clock")


def test_nothing_is_named_by_a_guessable_number() -> None:
    judge((place for place in walk() if "random" in imported(place.node)), RANDOM, "the random module")


def test_no_sql_is_composed() -> None:
    sql = re.compile(r"\b(select|update|alter table|drop table|create table|insert into|delete from) ", re.IGNORECASE)

    def composed(node: Any) -> bool:
        match node:
            case ast.JoinedStr():
                return any(isinstance(value, ast.FormattedValue) for value in node.values)
            case ast.BinOp(op=ast.Mod() | ast.Add()):
                return not isinstance(node.right, ast.Constant)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="format")):
                return True
        return False

    def texts(node: Any) -> str:
        return " ".join(
            each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )

    found = (place for place in walk() if composed(place.node) and sql.search(texts(place.node)))
    judge(found, COMPOSED_SQL, "SQL put together from parts")


def test_broad_excepts_stand_only_where_the_code_inside_is_not_ours() -> None:
    broad = {"Exception", "BaseException"}

    def is_broad(node: Any) -> bool:
        if isinstance(node, ast.ExceptHandler):
            caught = (
                [] if node.type is None else [each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)]
            )
            return node.type is None or bool({"Exception", "BaseException"} & set(caught))
        return called(node).endswith("suppress") and any(
            isinstance(each, ast.Name) and each.id in broad for each in node.args
        )

    judge((place for place in walk() if is_broad(place.node)), BROAD_EXCEPTS, "a broad except")


# -- SQL


def test_every_statement_is_spoken_by_name_somewhere() -> None:
    said = {place.node.value for place in walk() if isinstance(place.node, ast.Constant)}
    assert load("stepwell").keys() - said == set()


def test_a_statement_fits_on_a_screen() -> None:
    def length(sql: str) -> int:
        return sum(1 for line in sql.splitlines() if line.strip() and not line.strip().startswith("--"))

    long = {name for name, statement in load("stepwell").items() if length(statement.sql) > STATEMENT_LINES}
    assert long == LONG_STATEMENTS.keys()


# -- public names


def test_what_the_package_exports_is_what_it_lists_in_order() -> None:
    exported = {name for name, value in vars(stepwell).items() if not name.startswith("_") and not ismodule(value)}
    assert stepwell.__all__ == sorted(stepwell.__all__)
    assert set(stepwell.__all__) == exported


def test_what_was_promised_to_users_can_be_imported() -> None:
    assert set(stepwell.__all__) >= PROMISED
    assert not NOT_YET & set(stepwell.__all__), "now it is there: move it to PROMISED"


def error_classes() -> list[type[StepwellError]]:
    """Every error of the package, wherever it is defined, but those of the command line."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "stepwell."):
        if not module.name.startswith(("stepwell.cli", "stepwell.__main__", "stepwell.executors.child")):
            import_module(module.name)
    found, unseen = [], [StepwellError]
    while unseen:
        found.append(unseen.pop())
        unseen += found[-1].__subclasses__()
    return sorted((each for each in found if not each.__module__.startswith("stepwell.cli")), key=lambda e: e.__name__)


def made(kind: type[StepwellError]) -> StepwellError:
    glimpse = Glimpse(UUID(int=8), "tests.task", State.PENDING, datetime.fromtimestamp(0, UTC))
    samples = {UUID: UUID(int=7), int: 3, str: "a {word}", Any: {"any": 1}, str | None: None, Glimpse: [glimpse]}
    hints = {
        "UUID": UUID, "int": int, "str": str, "Any": Any, "str | None": str | None, "list[Glimpse]": Glimpse
    }  # fmt: skip
    return kind(**{field.name: samples[hints[str(field.type)]] for field in fields(kind)})


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_says_its_docstring_survives_pickling_and_is_exported(kind: type[StepwellError]) -> None:
    error = made(kind)
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "a dataclass without a docstring of its own"
    said = str(error)
    assert said
    assert said.strip() == said
    told = {name: fact for name, fact in error.facts().items() if f"{{{name}" in kind.__doc__}
    assert all(str(fact) in said or repr(fact) in said for fact in told.values())
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts(), str(again)) == (kind, error.facts(), said)
    assert getattr(stepwell, kind.__name__, None) is kind


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = set(re.findall(r"[A-Z]\w+", errors.__doc__ or "")) - {"Every"}
    there = {name for name, value in getmembers(errors, isclass) if issubclass(value, StepwellError)}
    assert drawn == there
