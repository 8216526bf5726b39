"""Recipes use public names of stoker: what they need and others would too belongs into a public package."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker_recipes

RECIPES = Path(stoker_recipes.__file__).parent
PUBLIC = {
    "stoker", "stoker.diagnose", "stoker.errors", "stoker.split", "stoker.store",
    "stoker.testing", "stoker.train", "stoker.tune", "stoker.experiment", "stoker.extend",
    "stoker.cli.command", "stoker.cli.pack", "stoker.cli.training", "stoker.cli.tune",
}  # fmt: skip
"""Packages whose `__init__` lists what is public, and modules that commands of recipes are made of."""
FILES = sorted(RECIPES.rglob("*.py"))


def private_imports(text: str) -> Iterator[str]:
    """Yield what a text imports of stoker although it is not public: modules, and names that a public package does not list."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            if node.module == "stoker":
                modules += [f"stoker.{alias.name}" for alias in node.names if alias.name[0] == "_"]
            elif node.module in PUBLIC:
                public = importlib.import_module(node.module)
                exported = getattr(public, "__all__", dir(public))
                modules += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in exported]
        else:
            continue
        for module in modules:
            is_ours = module == "stoker" or module.startswith("stoker.")
            if is_ours and module not in PUBLIC:
                yield module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RECIPES)))
def test_only_public_names_are_imported(path: Path) -> None:
    assert list(private_imports(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from stoker.feed.feed import Feed",
        "import stoker.train.trainer",
        "from stoker.sampling.permutation import mix",
        "from stoker.store.manifest import Manifest",
        "from stoker.store import manifest",
        "from stoker.store import no_such_name",
        "from stoker import _disk",
        "from stoker._kernels import kernel",
    ],
)
def test_negative_control_a_private_import_is_found(line: str) -> None:
    assert list(private_imports(f"def f():\n    {line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "import stoker",
        "from stoker.train import Trainer",
        "from stoker.errors import OptionError",
        "from stoker.store import Store, add_column",
        "from stoker.extend import disk, kernel",
    ],
)
def test_public_imports_are_fine(line: str) -> None:
    assert not list(private_imports(line))
