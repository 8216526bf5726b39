"""The calls of a program that a patch would edit, found in this process instead of a child."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from stoker.diagnose.edit_sites import EditSites, SiteFinder


def sites_of(folder: Path, text: str, **modules: str) -> EditSites:
    """Run a program once. It calls `begin(model)` within its loop, and has its loader in the global name `loader`."""
    file = folder / "train.py"
    file.write_text(text, encoding="utf-8")
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    finder = SiteFinder()
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(file), "begin": lambda *roots: finder.begin(roots, None)}
    sys.path.insert(0, str(folder))
    try:
        finder.install()
        exec(compile(text, str(file), "exec", dont_inherit=True), names)
        found = finder.sites(names.get("loader"))
    finally:
        finder.remove()
        sys.path.remove(str(folder))
        for name in modules:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
    files = [str(file), *(str(folder / f"{name}.py") for name in modules)]
    return msgspec.structs.replace(found, main=str(file), files=files)


def is_unwatched() -> bool:
    """Whether torch is as before."""
    return all(
        constructor.__module__.startswith("torch") and not hasattr(constructor, "__wrapped__")
        for constructor in (torch.nn.Module.__init__, torch.utils.data.DataLoader.__init__)
    )
