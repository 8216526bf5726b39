"""Recipes stand on public names of stoker: what a recipe can do, a user can do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stoker

FOLDER = Path(stoker.__file__).parent / "recipes"
PUBLIC = {
    "stoker",
    "stoker.clock",
    "stoker.encode",
    "stoker.errors",
    "stoker.files",
    "stoker.split",
    "stoker.testing",
    "stoker.train",
    "stoker.train.config",
}
"""What recipes import: packages with a page of public names, the errors, the one writer of files, and the one clock."""


def private_imports(text: str) -> list[str]:
    """What a module imports of stoker beside public names and its own kind."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [name for name in names if name.split(".")[0] == "stoker" and name not in PUBLIC]
    return [name for name in found if not name.startswith("stoker.recipes") and name != "stoker.lazy"]


@pytest.mark.parametrize("path", sorted((FOLDER / "tfa").glob("*.py")), ids=lambda path: path.name)
def test_the_recipe_uses_public_names_only(path: Path) -> None:
    assert private_imports(path.read_text()) == []


def test_negative_control_a_private_name_is_found() -> None:
    text = (
        "from stoker.train.fit import Fit\nimport stoker.store.pack\nfrom stoker import files\nfrom stoker.recipes.tfa import audit"
    )
    assert private_imports(text) == ["stoker.train.fit", "stoker.store.pack"]
