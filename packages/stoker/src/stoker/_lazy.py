"""Imports: lazy names of a package, which lists all it offers on one page, and the modules of a program that stoker runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path

_IMPORT = re.compile(r"^    from (\S+) import (\w+) as (\w+)$", re.MULTILINE)


def lazy(
    package: str, names: Mapping[str, str] | None = None, *, modules: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package, whose names are imported when they are first used.

    The names, each as "module:attribute", and modules of the package are by default those that its file imports for type checkers, in
    lines like `from module import name as name`. So they are listed once.
    """
    if names is None:
        imports = _IMPORT.findall(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
        modules = [name for module, _, name in imports if module == package]
        names = {name: f"{module}:{attribute}" for module, attribute, name in imports if module != package}
    known = names

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = known[name].partition(":")
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *known, *modules})

    return get, list_names, sorted(known)


def import_first(folder: Path) -> None:
    """Let a program that begins now import the modules of its folder first, as Python does for a script.

    A module of the same name that stoker has imported, such as `secrets` or `statistics`, is imported again by the program.
    """
    if sys.flags.safe_path:
        return
    sys.path.insert(0, str(folder))
    own = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in own - {"stoker", "torch", "numpy", "msgspec"}:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin not in (None, "built-in", "frozen") and folder not in Path(origin).parents:
            for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
                del sys.modules[module]
