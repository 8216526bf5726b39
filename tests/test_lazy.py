"""Lazy names: a package has all of its names at once, and imports a module when one of them is first used."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker._lazy import import_first, lazy


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A package with the name `root`, which is `math.sqrt`, and the module `part`."""
    made = types.ModuleType("lazy_package")
    made.__path__ = []
    get, names, made.__all__ = lazy("lazy_package", {"root": "math:sqrt", "gone": "math:no_such_name"}, modules=["part"])  # type: ignore[attr-defined]
    made.__getattr__, made.__dir__ = get, names  # type: ignore[method-assign, assignment]
    monkeypatch.setitem(sys.modules, "lazy_package", made)
    monkeypatch.setitem(sys.modules, "lazy_package.part", types.ModuleType("lazy_package.part"))
    return made


def test_a_name_is_imported_once_and_then_kept(package: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "root" not in vars(package)
    assert package.root(9) == 3
    assert "root" in vars(package)
    monkeypatch.setitem(sys.modules, "math", None)
    assert package.root(16) == 4


def test_all_names_are_listed_before_any_is_imported(package: types.ModuleType) -> None:
    assert package.__all__ == ["gone", "root"]
    assert {"gone", "part", "root"} <= set(dir(package))
    assert "root" not in vars(package)


def test_modules_of_a_program_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colorsys.py").write_text("mine = True")
    (tmp_path / "os.py").write_text("mine = True")
    for name in ("colorsys", "os"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert not hasattr(sys.modules["colorsys"], "mine")
    import_first(tmp_path)
    assert importlib.import_module("colorsys").mine
    assert not hasattr(importlib.import_module("os"), "mine"), "Python has it from the start"
