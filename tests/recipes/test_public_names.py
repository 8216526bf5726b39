"""Recipes use public names of stoker: what a recipe needs and others would too belongs into the library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import recipes

FOLDER = Path(recipes.__file__).parent
PUBLIC = {
    "stoker", "stoker.diagnose", "stoker.encode", "stoker.recipes", "stoker.split", "stoker.store", "stoker.testing",
    "stoker.train", "stoker.experiment.parse",
}  # fmt: skip
"""Packages whose `__init__` says what is public."""
GROUND = {"_clock", "_disk", "_kernels", "_lazy", "_text", "_types", "errors"}
"""What everything in stoker stands on."""


def private_imports(text: str) -> Iterator[str]:
    """Modules of stoker that a text imports from, and that are neither public pages nor the ground nor of the recipes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            is_ours = module == "stoker" or module.startswith("stoker.")
            is_fine = module in PUBLIC or module.startswith("stoker.recipes.") or module.removeprefix("stoker.") in GROUND
            if is_ours and not is_fine:
                yield module


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_recipe_imports_public_names_only(path: Path) -> None:
    assert list(private_imports(path.read_text())) == []


@pytest.mark.parametrize(
    "line", ["from stoker.feed.feed import Feed", "import stoker.train.trainer", "from stoker.sampling.permutation import mix"]
)
def test_negative_control_a_private_import_is_found(line: str) -> None:
    assert list(private_imports(f"def f():\n    {line}\n"))


@pytest.mark.parametrize("line", ["import stoker", "from stoker.train import Trainer", "from stoker.errors import OptionError"])
def test_public_imports_are_fine(line: str) -> None:
    assert not list(private_imports(line))
