"""What `./dev` and the requirement files promise to a fresh checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THIS_MACHINE = re.compile(
    r"pypi\.org|pythonhosted|registry\.npmjs|artifactory|https?_proxy|\bproxy\s*="
    r"|(?<![\w.])/(root/|work/(main|shared)\b|home/\w+/)",
    re.IGNORECASE,
)


def tracked_files() -> Iterator[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            yield path


def pins(name: str) -> dict[str, str]:
    """Every requirement of the file by its name, with its continuation lines."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {line.split("==")[0]: line for line in lines}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if THIS_MACHINE.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["run", "dev"])
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    assert pins(name)
    for requirement in pins(name).values():
        assert re.match(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", requirement), requirement[:80]


def test_the_demo_and_the_tests_run_on_the_same_versions() -> None:
    assert pins("run").items() <= pins("dev").items()


def test_the_pins_cover_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    needed = names(project["project"]["dependencies"]) | names(groups["build"])
    assert needed <= pins("run").keys(), "run ./dev lock"
    assert names(groups["dev"]) <= pins("dev").keys(), "run ./dev lock"


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_dev_explains_itself_when_it_does_not_understand(arguments: list[str]) -> None:
    result = subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert "usage: ./dev" in result.stderr


def test_a_child_of_the_tests_hears_ctrl_c() -> None:
    ask = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    assert told.stdout == "True\n"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_child_of_the_tests_hears_ctrl_c_where_the_suite_ignores_it(processes: str) -> None:
    this = f"{__file__}::{test_a_child_of_the_tests_hears_ctrl_c.__name__}"
    pytest_anew = [sys.executable, "-m", "pytest", "-n", processes, "-p", "no:cacheprovider", this]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest_anew]
    told = subprocess.run(ignoring, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_licence_that_the_package_names_comes_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    (file,) = project["license-files"]
    text = (ROOT / file).read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
