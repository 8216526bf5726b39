"""Lazy names: a package names all it offers on one page, and each is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module


def lazy(
    package: str, names: Mapping[str, str], *, modules: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose `names` are given as "module:attribute"."""

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *modules})

    return get, list_names, sorted(names)
