"""Extensions: what other packages register by entry points is found by name, and what is missing says what to install."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.calling import Done

from stoker import extend
from stoker.errors import ExtensionError

Stoker = Callable[..., Done]

ENTRIES = """[stoker.commands]
waves = waves:command

[stoker.recipes]
waves = waves:RECIPE
broken = waves:NO_SUCH_NAME

[stoker.formats]
waves = waves:FORMAT
"""
MODULE = """
from stoker.extend import FolderFormat, Recipe

RECIPE = Recipe(owns_config=lambda tree: "waves" in tree)
FORMAT = FolderFormat(matches=lambda path: (path / "waves.txt").exists(), open=lambda path, name: (path, name))
"""


PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def install(folder: Path, module: str, text: str, entries: str) -> None:
    """Write a module with the facts that pip would write beside it."""
    (folder / f"{module}.py").write_text(text)
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages that Python imports from."""

    def forget() -> None:
        for function in (extend.registered, extend.load):
            function.cache_clear()
        for name in ("waves", "stoker_waves"):
            sys.modules.pop(name, None)

    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget()
    yield folder
    forget()


@pytest.fixture
def package(site: Path) -> None:
    """An installed package that registers extensions."""
    install(site, "waves", MODULE, ENTRIES)


def install_example(site: Path) -> None:
    """Install the package of docs/extending.md."""
    project, module = re.findall(r"```(?:text|python)\n(?:# stoker_waves.py\n)?(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    groups = tomllib.loads(project)["project"]["entry-points"]
    entries = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in known.items()) for group, known in groups.items()
    )
    assert len(module.splitlines()) <= 75
    install(site, "stoker_waves", module, entries)


def test_the_example_of_the_documents_works_from_raw_files_to_predictions(
    stoker: Stoker, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install_example(site)
    assert "Commands of stoker_waves." in stoker("--help").out
    assert "stoker_waves" not in sys.modules, "no import before it is used"
    calls = re.findall(r"^stoker (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(calls) == 4
    for call in calls:
        done = stoker(*call.split())
        assert done.code == 0, done.err
    rows = json.loads(stoker(*calls[-1].split(), "--json").out)["predictions"]
    assert [(row["series"], row["step"], row["prediction"]) for row in rows] == [
        ("sin", 32, 0), ("sin", 33, 1), ("cos", 32, 1), ("cos", 33, 0)
    ]  # fmt: skip


def test_negative_control_without_the_package_its_names_are_unknown(
    stoker: Stoker, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "recipe.json").write_text('{"recipe": "waves"}')
    for call in ("waves make raw", "train waves x.stoker", "predict runs --data x.stoker", "export runs y"):
        done = stoker(*call.split())
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "pip install ./packages/stoker-recipes" in done.err


@pytest.mark.usefixtures("package")
def test_extensions_are_listed_without_an_import_and_loaded_by_name() -> None:
    assert "waves" in extend.registered("commands")
    assert "waves" not in sys.modules
    assert extend.recipe("waves").owns_config({"waves": 1})
    assert not extend.recipe("waves").owns_config({})


@pytest.mark.usefixtures("package")
def test_a_folder_is_read_by_the_format_that_matches(tmp_path: Path) -> None:
    assert extend.folder_format(tmp_path) is None
    (tmp_path / "waves.txt").touch()
    known = extend.folder_format(tmp_path)
    assert known is not None
    assert known.open(tmp_path, "a") == (tmp_path, "a")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("name", "word"), [("none", "not one of the installed"), ("broken", "cannot be imported")])
def test_what_is_missing_is_an_error_that_names_it(name: str, word: str) -> None:
    with pytest.raises(ExtensionError, match=word) as error:
        extend.recipe(name)
    assert repr(name) in str(error.value)


def test_negative_control_without_the_package_nothing_is_found() -> None:
    assert "waves" not in extend.registered("recipes")
