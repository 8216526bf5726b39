"""Every public name explains itself: what it does, its arguments, what it returns, and an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import stoker

PACKAGES = (
    *(f"stoker{name}" for name in ("", ".diagnose", ".experiment", ".split", ".testing", ".train", ".tune")),
    "stoker_recipes.tabular",
)
"""Packages, and modules, that show in their names what is public."""
ON_PAGE_OF_RECIPE = {"load_model", "quality", "train"}
"""Names of `stoker_recipes.tabular` whose examples are on the page of the recipe."""
OTHERS = ("stoker_recipes.tfa", "stoker_recipes.time_moe", "stoker.store")
"""Recipes are documented as a whole, in docs/recipes, and `stoker.store` is for code that writes stores: a summary is enough."""


def public_names(package: str) -> list[str]:
    """The names that a package shows, without its modules."""
    module = importlib.import_module(package)
    return [
        name
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
        and not (package == "stoker_recipes.tabular" and name in ON_PAGE_OF_RECIPE)
    ]


PUBLIC = [(package, name) for package in PACKAGES for name in public_names(package)]


def is_record(value: Any) -> bool:
    """Whether a class only holds values that others made: its fields say what they are."""
    return inspect.isclass(value) and (
        hasattr(value, "__dataclass_fields__") or hasattr(value, "__struct_fields__") or hasattr(value, "_fields")
    )


def missing_parts(value: Any) -> list[str]:
    """What the docstring of a function or class lacks."""
    if is_record(value) or not callable(value) or getattr(value, "_is_protocol", False):
        return []
    text = inspect.getdoc(value) or ""
    needed = ["Example"]
    if value is stoker.Store:  # made by its functions
        return [part for part in needed if f"{part}:" not in text]
    parameters = inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters
    if [name for name in parameters if name not in ("self", "args", "kwargs")]:
        needed.append("Args")
    return [part for part in needed if f"{part}:" not in text and f"{part}s:" not in text]


@pytest.mark.parametrize(("package", "name"), PUBLIC, ids=lambda part: part)
def test_a_public_name_is_documented_and_its_example_runs(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = getattr(importlib.import_module(package), name)
    assert (inspect.getdoc(value) or "").strip(), "it has no docstring"
    assert missing_parts(value) == []
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for found in finder.find(value, name, extraglobs={"np": np, "stoker": stoker, "torch": torch}):
        runner.run(found)
    assert runner.failures == 0, "its example fails; see the output above"
    text = inspect.getdoc(value) or ""
    assert runner.tries > 0 or "Example" not in text or "+SKIP" in text, "its example has no line that runs"


def test_negative_control_a_bad_docstring_is_found() -> None:
    def bare(x: int) -> int:
        """Double x."""
        return 2 * x

    assert missing_parts(bare) == ["Example", "Args"]


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in OTHERS for name in public_names(package)])
def test_other_public_names_have_a_summary(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    assert (not inspect.isroutine(value) and not inspect.isclass(value)) or (inspect.getdoc(value) or "").strip()
