"""What reaches people: the files of the wheels, the action for pull requests, and the hooks of pre-commit."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from tools.distributions import PACKAGES, ROOT, build, missing_files

FAKE = """#!/bin/sh
echo "$@" >> {log}
echo "# a receipt"
exit {status}
"""


@pytest.fixture
def act(tmp_path: Path):
    """Run the action with a command `stoker` that keeps its arguments; returns the exit code, the arguments and the summary."""
    log, summary = tmp_path / "log", tmp_path / "summary.md"

    def run(status: int = 0, **inputs: str) -> tuple[int, str, str]:
        tool = tmp_path / "bin" / "stoker"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(FAKE.format(log=log, status=status))
        tool.chmod(0o755)
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        step = action["runs"]["steps"][0]
        given = {"script": "train.py --lr 0.1", "base": "HEAD", **inputs}
        values = {name: given.get(name, entry.get("default", "")) for name, entry in action["inputs"].items()}
        environment = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text) for name, text in step["env"].items()
        }
        environment |= {"ACTION": str(ROOT), "GITHUB_STEP_SUMMARY": str(summary), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
        done = subprocess.run(step["run"], shell=True, cwd=ROOT, env={**os.environ, **environment}, check=False)
        return done.returncode, log.read_text() if log.exists() else "", summary.read_text() if summary.exists() else ""

    return run


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
def test_action_compares_with_the_base_and_adds_the_receipt_to_the_summary(act) -> None:
    code, arguments, summary = act(require="speed>=0.9,loss=equal")
    assert code == 0
    assert arguments.split() == [
        *("compare", "--quiet", "--markdown", "--budget", "300", "--git", "HEAD", "WORK"),
        *("--require", "speed>=0.9,loss=equal", "train.py", "--lr", "0.1"),
    ]
    assert summary == "# a receipt\n"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
@pytest.mark.parametrize(("status", "require", "code"), [(1, "", 1), (4, "", 4), (3, "", 0), (3, "speed>=1.2", 3)])
def test_action_fails_where_the_receipt_decides_so(act, status: int, require: str, code: int) -> None:
    assert act(status, require=require)[0] == code


def test_action_gates_with_the_budget_of_the_repository(act) -> None:
    code, arguments, summary = act(1, command="gate", budget="limits.json")
    assert (code, arguments) == (1, "gate --quiet --budget limits.json train.py --lr 0.1\n")
    assert "# a receipt" in summary


def test_action_refuses_another_command(act) -> None:
    assert act(command="tune")[:2] == (2, "")


def test_hooks_of_pre_commit_are_commands() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["entry"] for hook in hooks] == ["stoker gate", "stoker audit"]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks)


def test_versions_are_one() -> None:
    from importlib.metadata import requires, version

    import stoker

    assert version("stoker") == version("stoker-recipes") == stoker.__version__
    assert f"stoker=={stoker.__version__}" in (requires("stoker-recipes") or [])
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == stoker.__version__


def lacking(folder: Path) -> list[str]:
    """Return what the metadata of a package lacks that a package index or a reader of it needs."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    lacks = [name for name in ("description", "readme", "license", "authors", "keywords", "classifiers") if not project.get(name)]
    readme = folder / project.get("readme", "none")
    if not readme.is_file() or not re.fullmatch("# (Stoker|Recipes of Stoker)", readme.read_text().splitlines()[0]):
        lacks.append("a readme with its title")
    if not all((folder / name).is_file() for name in project.get("license-files", ["none"])):
        lacks.append("the license")
    if project.get("requires-python") != ">=3.11" or "Python 3.11" not in (ROOT / "README.md").read_text():
        lacks.append("the Python of the README")
    if re.search(r"github\.com/(?:example|your|OWNER)", str(project.get("urls", ""))):
        lacks.append("addresses that exist")
    known = (
        "Development Status :: ",
        "Environment :: ",
        "Intended Audience :: ",
        "Operating System :: ",
        "Programming Language :: ",
    )
    lacks += [name for name in project.get("classifiers", []) if not name.startswith((*known, "Topic :: ", "Typing :: Typed"))]
    return lacks


@pytest.mark.parametrize("package", PACKAGES)
def test_metadata_say_what_a_package_is(package: str) -> None:
    assert lacking(ROOT / "packages" / package) == []


def test_negative_control_metadata_that_lack_something_are_named(tmp_path: Path) -> None:
    source = ROOT / "packages" / "stoker"
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    assert lacking(tmp_path) == []
    text = (source / "pyproject.toml").read_text()
    for line, lack in (
        ("readme = ", "readme"),
        ("authors = ", "authors"),
        ("keywords = ", "keywords"),
        ("description = ", "description"),
    ):
        (tmp_path / "pyproject.toml").write_text("".join(part for part in text.splitlines(True) if not part.startswith(line)))
        assert lacking(tmp_path)[0] == lack
    (tmp_path / "pyproject.toml").write_text(text.replace("Topic :: Scientific", "Science :: Scientific"))
    assert len(lacking(tmp_path)) == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_files_that_a_wheel_lacks_are_named(package: str, tmp_path: Path) -> None:
    source = ROOT / "packages" / package / "src"
    files = [
        path
        for path in source.rglob("*")
        if path.is_file() and path.suffix in (".py", ".typed", ".md", ".css", ".html", ".js", ".jinja")
    ]
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in files[1:]:
            archive.write(path, path.relative_to(source).as_posix())
    assert missing_files(package, wheel) == [files[0].relative_to(source).as_posix()]


@pytest.mark.slow
def test_wheels_have_all_files_of_their_packages(tmp_path: Path) -> None:
    venv.create(tmp_path / "builder", with_pip=True)
    python = str(tmp_path / "builder" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "build"], check=True)
    assert len(build(tmp_path / "dist", python)) == len(PACKAGES)
