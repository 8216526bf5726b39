"""Runs the top level of a user's script, not as the main program, and finds its batches."""

from __future__ import annotations

import contextlib
import inspect
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from stoker.errors import BatchError, OptionError, StokerError

NAME = "__stoker_check__"
"""The value of `__name__` in the script."""
MAX_NAMES = 12


class Script:
    """The top level of a script that has run."""

    def __init__(self, path: Path, wanted: str | None, names: dict[str, Any]) -> None:
        self._path = path
        self._wanted = wanted
        self._names = names

    @classmethod
    @contextlib.contextmanager
    def run(cls, script: str, arguments: Sequence[str]) -> Iterator[Script]:
        """Run a script, given as a path with or without `:NAME`. An error in it, then or later, becomes one line."""
        path, wanted = _split(script)
        argv, paths = sys.argv, list(sys.path)
        sys.argv = [str(path), *arguments]
        sys.path.insert(0, str(path.resolve().parent))
        try:
            names = runpy.run_path(str(path), run_name=NAME)
            module = ModuleType(NAME)  # classes of the script are looked up by the name of their module
            module.__dict__.update(names)
            sys.modules[NAME] = module
            yield cls(path, wanted, names)
        except StokerError:
            raise
        except SystemExit as end:
            raise BatchError(f"{path} exited with code {end.code!r} before its batches could be read.") from end
        except Exception as error:
            raise BatchError(f"{path}{_line_of(error, path)} raised {type(error).__name__}: {_one_line(error)}") from error
        finally:
            sys.argv, sys.path[:] = argv, paths
            sys.modules.pop(NAME, None)

    def batches(self) -> Any:
        """The iterable of batches, or a function that returns one."""
        if self._wanted is not None:
            return self._get(self._wanted)
        found = {id(value): name for name, value in self._public() if _is_loader(value)}
        if len(found) == 1:
            return self._get(next(iter(found.values())))
        if found:
            names = ", ".join(found.values())
            raise OptionError(
                f"{self._path} has {len(found)} loaders: {names}. Choose one: {self._path}:{next(iter(found.values()))}"
            )
        functions = [name for name, value in self._public() if isinstance(value, FunctionType) and _needs_nothing(value)]
        hint = f" Functions that could: {', '.join(functions[:MAX_NAMES])}." if functions else ""
        raise OptionError(
            f"{self._path} has no loader at its top level. Name an iterable of batches, or a function that returns one: "
            f"{self._path}:NAME.{hint}"
        )

    def data(self, name: str) -> Any:
        """The value of a name; a function is called."""
        value = self._get(name)
        return value() if isinstance(value, FunctionType) else value

    def _get(self, name: str) -> Any:
        if name not in self._names:
            names = ", ".join([name for name, _ in self._public()][:MAX_NAMES])
            raise OptionError(f"{self._path} has no {name!r} at its top level; it has {names or 'no names'}.")
        value = self._names[name]
        if isinstance(value, FunctionType) and not _needs_nothing(value):
            raise OptionError(f"{name} of {self._path} needs arguments; expected a function without required arguments.")
        return value

    def _public(self) -> list[tuple[str, Any]]:
        return [
            (name, value) for name, value in self._names.items() if not name.startswith("_") and not isinstance(value, ModuleType)
        ]


def _split(script: str) -> tuple[Path, str | None]:
    path, _, name = script.rpartition(":")
    if path and name.isidentifier() and not Path(script).exists():
        found, wanted = Path(path), name
    else:
        found, wanted = Path(script), None
    if not found.is_file():
        raise OptionError(f"{found} {'is a folder' if found.is_dir() else 'does not exist'}; expected a Python script.")
    return found, wanted


def _is_loader(value: Any) -> bool:
    """Whether this gives batches: an iterable with a dataset, or a generator."""
    if isinstance(value, type):
        return False
    return (hasattr(value, "dataset") and hasattr(value, "__iter__")) or inspect.isgenerator(value)


def _needs_nothing(function: FunctionType) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _line_of(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f" line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
