"""Loading of an App: from `module:app` or `path/to/app.py:app`."""

from __future__ import annotations

import os
import sys
import tomllib
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from stepwell.app import App
from stepwell.model.errors import StepwellError, UsageError

_PACKAGE = Path(__file__).parents[1]


@dataclass(eq=False)
class NoApp(UsageError):
    """{reference}: {reason}"""

    reference: str
    reason: str


@dataclass(eq=False)
class NoAppNamed(UsageError):
    """No app is named: give it as APP (module:app, or path/to/app.py), by --app or STEPWELL_APP, or in pyproject.toml:
    [tool.stepwell] app = "module:app"."""


@dataclass(eq=False)
class WrongProject(UsageError):
    """{file}: {reason}"""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Named:
    """An app's reference, and where it was named."""

    reference: str
    by: str
    root: Path
    """The directory from which it is looked for."""

    @property
    def words(self) -> list[str]:
        """The argument that names it for a child in the same directory; none where the child finds it by itself."""
        return [self.reference] if self.root == Path.cwd() else []

    def load(self) -> App:
        try:
            return load_app(self.reference, root=self.root)
        except NoApp as error:
            if not self.by:
                raise
            raise NoApp(f"{self.reference} (named by {self.by})", error.reason) from None


def named_app(given: str | None = None) -> Named | None:
    """The app that is given; else that of `--app`, of STEPWELL_APP, or of the nearest pyproject.toml that has one."""
    context = click.get_current_context(silent=True)
    by_option = None if context is None else context.find_root().params.get("app_reference")
    for by, reference in (("", given), ("--app", by_option), ("STEPWELL_APP", os.environ.get("STEPWELL_APP"))):
        if reference:
            return Named(reference, by, Path.cwd())
    for directory in (Path.cwd(), *Path.cwd().parents):
        file = directory / "pyproject.toml"
        if os.path.isfile(file) and (found := _of_project(file)) is not None:
            return Named(found, str(file), directory)
    return None


def wanted_app(given: str | None) -> Named:
    """The same for a command that cannot do without one."""
    if (found := named_app(given)) is None:
        raise NoAppNamed
    return found


def _of_project(file: Path) -> str | None:
    try:
        facts = tomllib.loads(file.read_text(encoding="utf-8"))
    except PermissionError:
        return None  # another user's, further up
    except (ValueError, OSError) as error:
        raise WrongProject(str(file), f"it cannot be read: {error}") from None
    tools = facts.get("tool")
    ours = tools.get("stepwell") if isinstance(tools, dict) else None
    if ours is None:
        return None
    if not isinstance(ours, dict) or ours.keys() - {"app"}:
        raise WrongProject(str(file), "[tool.stepwell] has one setting, app")
    app = ours.get("app")
    if app is not None and (not isinstance(app, str) or not app):
        raise WrongProject(str(file), 'app of [tool.stepwell] is a text: "module:app", or "path/to/app.py"')
    return app


def load_app(reference: str, *, root: Path | None = None) -> App:
    """Import the app, as its own code would see itself: by module name, with the root on the path.

    The root is the working directory, unless it is said.
    """
    place, attribute = _parts(reference)
    base = Path.cwd() if root is None else root
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    path = Path(place) if base == Path.cwd() else base / place
    name = _module_at(reference, path) if _is_path(place) else place
    module = _imported(reference, name)
    if _is_path(place) and (got := getattr(module, "__file__", None)) and not os.path.samefile(got, path):
        raise NoApp(reference, f"another module is called {name!r}, {got}. Give the file another name.")
    return _app_in(reference, module, attribute)


def source_of(named: Named) -> Path:
    """The file or directory that a reference points at, as far as can be told without importing it."""
    place, _ = _parts(named.reference)
    return named.root / (Path(place) if _is_path(place) else Path(*place.split(".")))


def _parts(reference: str) -> tuple[str, str | None]:
    place, _, attribute = reference.partition(":")
    return place, attribute or None


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _module_at(reference: str, path: Path) -> str:
    """The module's name, its import root put on the path: a file inside a package is imported as part of it."""
    if not os.path.isfile(path):  # which is quiet about a name that is too long for a file
        raise NoApp(reference, f"there is no file {path} (the working directory is {os.getcwd()}).")
    root, names = path.resolve().parent, [path.stem]
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    if not all(name.isidentifier() for name in names):
        raise NoApp(reference, f"{'.'.join(names)!r} is no name for a Python module. Give the file another name.")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return ".".join(names)


def _imported(reference: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            hint = f"It is looked for from {os.getcwd()} and among what is installed."
            raise NoApp(reference, f"there is no module {error.name!r}. {hint}") from None
        raise NoApp(reference, f"importing it failed.\n{_their_traceback(error)}") from None
    except StepwellError as error:  # of a wrong setting, above all: its message is all that there is to say
        raise NoApp(reference, f"importing it failed{_place(error)}: {error}") from None
    except (Exception, SystemExit) as error:
        raise NoApp(reference, f"importing it failed.\n{_their_traceback(error)}") from None


def _app_in(reference: str, module: ModuleType, attribute: str | None) -> App:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    known = f"It has {', '.join(apps)}." if apps else "It has no App: write `app = App()` in it."
    if attribute is not None:
        value: object = module
        for part in attribute.split("."):
            value = getattr(value, part, None)
        if isinstance(value, App):
            return value
        what = "is not there" if value is None else f"is a {type(value).__name__}, not an App"
        raise NoApp(reference, f"{attribute!r} {what}. {known}")
    if "app" in apps:
        return apps["app"]
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    choose = f"Say which: {' or '.join(f'{module.__name__}:{name}' for name in apps)}." if apps else ""
    raise NoApp(reference, f"it has several Apps. {choose}" if apps else "it has no App: write `app = App()` in it.")


def _their_traceback(error: BaseException) -> str:
    """The traceback without our frames and the import system's: what is left is the user's own."""
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each is not None:
        kept = [frame for frame in each.stack if not _is_ours(frame.filename)]
        each.stack = traceback.StackSummary.from_list(kept)
        each = each.__cause__ or each.__context__
    return "".join(told.format()).rstrip()


def _place(error: BaseException) -> str:
    """The user's own line from which it came."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_ours(each.filename)]
    users = [each for each in frames if not Path(each.filename).is_relative_to(_PACKAGE)]
    return f" at {users[-1].filename}:{users[-1].lineno}" if users else ""


def _is_ours(filename: str) -> bool:
    return filename == __file__ or ("importlib" in filename and (filename.startswith("<frozen") or "/lib/" in filename))
