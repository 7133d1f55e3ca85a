"""Reads one function: what is wrong in it, and which of the user's functions it calls."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Mapping

from stepwell.cli.checking import rules
from stepwell.cli.checking.rules import Rule
from stepwell.cli.checking.scope import Scope, scope_of
from stepwell.cli.checking.source import Def, Function
from stepwell.cli.checking.sources import Sources

_ELSEWHERE = {"task", "step", "workflow", "graph"}
_ORDERLESS = {"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset"}
_ORDERED = {"list", "tuple", "map", "enumerate", "iter", "zip", "filter", "dict.fromkeys"}
_COMMANDS = {"start", "start_many", "create_task", "publish", "signal", "cancel", "ensure_future"}
_BEGINS_ALL = "asyncio.as_completed"
"""Begins the coroutines that it is given, and need not be awaited itself."""
_RESULTS_OF = (".start()", ".submit()", "asyncio.run_coroutine_threadsafe()")

Found = Callable[[ast.AST, Rule], None]


def decorators(node: Def) -> set[str]:
    """The last words of its decorators: `workflow` for `@app.workflow(timeout=5)`."""
    bare = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return {each.attr for each in bare if isinstance(each, ast.Attribute)}


def has_timeout(node: Def) -> bool:
    """Tell whether the decorator gives the workflow a timeout: `@app.workflow(timeout="7d")`."""
    calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
    given = {keyword.arg: keyword.value for call in calls for keyword in call.keywords}
    return "timeout" in given and not _is_none(given["timeout"])


def is_timed_inside(function: Function) -> bool:
    """Tell whether the code limits its own time, and so hears when that is over."""
    scope = scope_of(function)
    return any(
        isinstance(node, ast.Call) and scope.plain(node.func) in rules.INSIDE for node in ast.walk(function.node)
    )


def runs_elsewhere(node: Def) -> bool:
    """Tell whether a call of it is a command: its body is no part of the workflow's code."""
    return bool(decorators(node) & _ELSEWHERE)


class Reader(ast.NodeVisitor):
    def __init__(self, scope: Scope, sources: Sources, found: Found, also: Mapping[str, Rule]) -> None:
        self._scope = scope
        self._sources = sources
        self._found = found
        self._also = also
        self._awaiting = 0
        self._orderless = 0
        self.calls: dict[str, Function] = {}

    # -- names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._names(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._names(node):
            self.visit(node.value)

    def _names(self, node: ast.Name | ast.Attribute) -> bool:
        """Tell whether a rule, or the user's own code, knows the name."""
        name = self._scope.plain(node)
        if name is None:
            return False
        if (rule := rules.BY_NAME.get(name) or self._also.get(name)) is not None:
            self._found(node, rule)
            return True
        function = self._sources.function(name)
        if function is None:
            return False
        if not runs_elsewhere(function.node):
            self.calls[f"{function.source.path}:{function.qualname}"] = function
        return True

    # -- calls

    def visit_Call(self, node: ast.Call) -> None:
        name = self._scope.plain(node.func) or ""
        rule = self._of_call(node, name)
        if rule is not None:
            self._found(node, rule)
            self._all([*node.args, *node.keywords])
            return
        orderless = name in _ORDERLESS or name.startswith("sorted(")
        self._orderless += orderless
        self._order_of_arguments(node, name)
        self.generic_visit(node)
        self._orderless -= orderless

    def _of_call(self, node: ast.Call, name: str) -> Rule | None:
        if name in rules.WITHOUT_ARGUMENTS:
            least, rule = rules.WITHOUT_ARGUMENTS[name]
            given = [each for each in (*node.args, *(keyword.value for keyword in node.keywords)) if not _is_none(each)]
            return rule if len(given) <= least else None
        if name == "contextlib.suppress" and any(self._scope.dotted(each) == "BaseException" for each in node.args):
            return rules.SWALLOWS
        match node.func:
            case ast.Attribute(attr=attribute) if attribute in rules.BY_METHOD:
                return rules.BY_METHOD[attribute]
            case ast.Attribute(value=ast.Attribute(attr="sync")):
                return rules.SYNC
            case ast.Attribute(attr="pop", value=value) if self._scope.is_set(value) and not node.args:
                return rules.SET_ORDER
        return None if name in rules.BY_NAME else rules.by_package(name)

    def _unawaited(self, value: ast.expr | None) -> None:
        """`run.result()` on a line of its own. Passed on, as to `gather`, it will be awaited there."""
        match value:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner):
                self._unawaited(inner)
            case ast.Call(func=ast.Attribute(value=of, attr="result")):
                origin = self._scope.dotted(of) or ""
                if value.args or value.keywords or origin.endswith(_RESULTS_OF):
                    self._found(value, rules.BLOCKING_RESULT)

    def visit_Expr(self, node: ast.Expr) -> None:
        self._unawaited(node.value)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        self._unawaited(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._unawaited(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._unawaited(node.value)
        if node.value is not None:
            self.visit(node.value)

    # -- awaiting

    def visit_Await(self, node: ast.Await) -> None:
        awaited = node.value.func if isinstance(node.value, ast.Call) else node.value
        name = self._scope.plain(awaited)
        if name is not None and self._is_foreign(name):
            self._found(node, Rule(f"{name}: {rules.FOREIGN.what}", rules.FOREIGN.instead, rules.FOREIGN.verdict))
        self._awaiting += 1
        self.generic_visit(node)
        self._awaiting -= 1

    def _is_foreign(self, name: str) -> bool:
        root = name.partition(".")[0].removesuffix("()")
        known = root in sys.stdlib_module_names or root in rules.KNOWS_ANY_LOOP or hasattr(builtins, root)
        return not known and rules.by_package(name) is None and not self._is_users(root)

    def _is_users(self, root: str) -> bool:
        return root == self._scope.source.module.partition(".")[0] or self._sources.is_users(root)

    # -- order

    def _order_of_arguments(self, node: ast.Call, name: str) -> None:
        if name == _BEGINS_ALL:
            for each in (*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "fs")):
                if self._scope.is_set(each) and not _makes_tasks(each):
                    self._found(each, rules.SET_ORDER)
        if not self._awaiting or self._orderless:
            return
        unpacked = [each.value for each in node.args if isinstance(each, ast.Starred)]
        for each in [*unpacked, *(node.args if name in _ORDERED else ())]:
            if self._scope.is_set(each):
                self._found(each, rules.SET_ORDER)

    def visit_For(self, node: ast.For) -> None:
        if self._scope.is_set(node.iter) and any(_is_command(each) for part in node.body for each in ast.walk(part)):
            self._found(node.iter, rules.SET_ORDER)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> None:
        reaches = self._awaiting or any(_is_command(each) for each in ast.walk(node.elt))
        if reaches and not self._orderless:
            for each in node.generators:
                if self._scope.is_set(each.iter):
                    self._found(each.iter, rules.SET_ORDER)
        self.generic_visit(node)

    # -- what ends a workflow must get through

    def visit_Try(self, node: ast.Try) -> None:
        self._try(node)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self._try(node)

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        for clause in node.handlers:
            if self._catches_all(clause) and not _within(clause.body, ast.Raise):
                self._found(clause, rules.SWALLOWS)
        if (leaves := _within(node.finalbody, ast.Return)) is not None:
            self._found(leaves, rules.RETURNS_IN_FINALLY)
        self.generic_visit(node)

    def _catches_all(self, clause: ast.ExceptHandler) -> bool:
        kinds = clause.type.elts if isinstance(clause.type, ast.Tuple) else [clause.type]
        return any(kind is None or self._scope.dotted(kind) == "BaseException" for kind in kinds)

    # -- functions inside

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inner(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inner(node)

    def _inner(self, node: Def) -> None:
        self._all([*node.args.defaults, *node.args.kw_defaults])
        if not runs_elsewhere(node):
            self._read_inside(self._scope.inside(node), node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._read_inside(self._scope.inside(node), [node.body])

    def _read_inside(self, scope: Scope, body: Iterable[ast.AST]) -> None:
        outer, self._scope = self._scope, scope
        self._all(body)
        self._scope = outer

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


def read(function: Function, sources: Sources, found: Found, also: Mapping[str, Rule]) -> list[Function]:
    """Tell what is wrong in it, by all rules and `also` by these; the user's functions that it calls."""
    reader = Reader(scope_of(function), sources, found, also)
    for statement in function.node.body:
        reader.visit(statement)
    return list(reader.calls.values())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _makes_tasks(node: ast.AST) -> bool:
    """Tell whether all members of this set are made into tasks here: tasks of a workflow have an order in every set."""
    match node:
        case ast.Set(elts=members):
            return all(_makes_task(each) for each in members)
        case ast.SetComp(elt=member):
            return _makes_task(member)
    return False


def _makes_task(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in ("create_task", "ensure_future")
    return False


def _is_command(node: ast.AST) -> bool:
    match node:
        case ast.Await():
            return True
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in _COMMANDS
    return False


def _within(body: list[ast.stmt], kind: type[ast.stmt]) -> ast.stmt | None:
    """The first such statement, but for those of functions inside."""
    unseen: list[ast.AST] = list(body)
    while unseen:
        node = unseen.pop(0)
        if isinstance(node, kind):
            return node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            unseen += ast.iter_child_nodes(node)
    return None
