from __future__ import annotations

import sys

import pytest

from stepwell import App
from stepwell.cli.loading import NoApp, load_app

APP = "from stepwell import App\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module with a name of its own into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    name = f"loaded_{tmp_path.name.replace('-', '_')}"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def refused(reference: str) -> str:
    with pytest.raises(NoApp) as refusal:
        load_app(reference)
    return str(refusal.value)


def test_an_app_is_found_by_its_name_or_because_it_is_the_only_one(module):
    name = module(APP + "shop = App()\nalias = shop")
    assert isinstance(load_app(f"{name}:shop"), App)
    assert load_app(name) is load_app(f"{name}:shop") is load_app(f"./{name}.py") is load_app(f"{name}.py:alias")


def test_the_name_app_is_preferred(module):
    name = module(APP + "other = App()\napp = App()")
    assert load_app(name) is load_app(f"{name}:app")


def test_a_file_in_a_package_is_loaded_as_part_of_it(module, tmp_path):
    package = module("") + "_package"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "names.py").write_text("NAME = 'tea'")
    (tmp_path / package / "main.py").write_text(APP + "from .names import NAME\napp = App()")
    assert isinstance(load_app(f"{package}/main.py"), App)


@pytest.mark.parametrize(
    ("text", "attribute", "says"),
    [
        ("", "", "it has no App"),
        (APP + "a = App(); b = App()", "", "several Apps. Say which:"),
        (APP + "a = App()", ":b", "'b' is not there. It has a."),
        (APP + "a = 3", ":a", "'a' is a int, not an App"),
        ("import no_such_thing", "", "No module named 'no_such_thing'"),
        ("import sys; sys.exit(3)", "", "SystemExit: 3"),
        ("def broken(", "", "SyntaxError"),
    ],
)
def test_what_is_wrong_is_said(module, text, attribute, says):
    assert says in refused(module(text) + attribute)


def test_a_missing_module_or_file_is_named(module):
    assert "there is no module 'no_such_module'" in refused("no_such_module:app")
    assert "there is no file no_such_file.py" in refused("no_such_file.py")


def test_only_the_users_part_of_a_traceback_is_shown(module):
    said = refused(module("def inner():\n    1 / 0\n\ninner()\n"))
    assert said.count("File ") == 2
    assert "importlib" not in said
    assert "ZeroDivisionError" in said


def test_a_file_called_like_another_module_is_refused(module, tmp_path):
    module("")
    (tmp_path / "asyncpg.py").write_text(APP + "app = App()")
    assert "another module is called 'asyncpg'" in refused("asyncpg.py")
