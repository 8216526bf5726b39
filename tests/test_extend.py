"""Extensions: what other packages register by entry points is found by name, and what is missing says what to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import extend
from stoker.errors import ExtensionError

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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that registers extensions."""
    (tmp_path / "waves.py").write_text(MODULE)
    facts = tmp_path / "waves-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: waves\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    for function in (extend.registered, extend.load):
        function.cache_clear()
    yield
    sys.modules.pop("waves", None)
    for function in (extend.registered, extend.load):
        function.cache_clear()


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
