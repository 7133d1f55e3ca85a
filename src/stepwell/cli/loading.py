"""From `module:app` or `path/to/app.py:app` to the App object."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from stepwell.app import App
from stepwell.model.errors import StepwellError, UsageError

_PACKAGE = Path(__file__).parents[1]


@dataclass(eq=False)
class NoApp(UsageError):
    """{reference}: {reason}"""

    reference: str
    reason: str


def load_app(reference: str) -> App:
    """Import the app, as its own code would see itself: by module name, with the working directory on the path."""
    place, attribute = _parts(reference)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name = _module_at(reference, Path(place)) if _is_path(place) else place
    module = _imported(reference, name)
    if _is_path(place) and (got := getattr(module, "__file__", None)) and not os.path.samefile(got, place):
        raise NoApp(reference, f"another module is called {name!r}, {got}. Give the file another name.")
    return _app_in(reference, module, attribute)


def source_of(reference: str) -> Path:
    """The file or directory that a reference points at, as far as can be told without importing it."""
    place, _ = _parts(reference)
    return Path(place) if _is_path(place) else Path(*place.split("."))


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
