"""A function of the user's own, named as `file.py:function`. Its file is run: it is trusted like the command itself."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stoker.errors import OptionError, StokerError


def load_function(name: str) -> Callable[..., Any]:
    """Run a file and take a function (or class) of it."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not function.isidentifier():
        raise OptionError(f"{name!r} is not a function; expected file.py:function.")
    if not path.is_file():
        raise OptionError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected the Python file of {function}.")
    module_name = f"stoker_own_{path.stem}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it stays: the function may import its neighbours when it is called
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} cannot be run as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _told(name, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    found = getattr(module, function, None)
    if not callable(found):
        names = [one for one, value in vars(module).items() if inspect.isfunction(value) and not one.startswith("_")]
        raise OptionError(f"{path} has no function {function!r}; it has {', '.join(names) or 'none'}.")
    return found  # type: ignore[no-any-return]


def call_function(name: str, options: Mapping[str, Any], **offered: Any) -> Any:
    """Call it with its options, and with what is offered as far as it has such parameters."""
    function = load_function(name)
    return _told(name, partial(function, **_arguments(name, function, options, offered)))


def bind_function(name: str, options: Mapping[str, Any], **offered: Any) -> Callable[..., Any]:
    """The function of (model, batch) with its options, and with what is offered as far as it has such parameters."""
    function = load_function(name)
    taken = [option for option in [*inspect.signature(function).parameters][:2] if option in options]
    if taken:
        raise OptionError(f"{name} gets {taken[0]!r} from the training, so it cannot be an option.")
    return partial(function, **_arguments(name, function, options, offered))


def _arguments(name: str, function: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if "" in options or not all(isinstance(option, str) for option in options):
        raise OptionError(f"{name} has the options {dict(options)!r}; expected names of its parameters.")
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [option for option in options if option not in parameters and not takes_all]
    if unknown:
        raise OptionError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(parameters) or 'none'}.")
    return {**{key: value for key, value in offered.items() if key in parameters}, **options}


@contextlib.contextmanager
def blaming(*names: str) -> Iterator[None]:
    """What goes wrong in code of the user's own, named as `file.py:function`, is one line that names the line of it."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        for name in names:
            path = Path(name.rpartition(":")[0])
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name]
            if lines or isinstance(error, SyntaxError):
                number = error.lineno if isinstance(error, SyntaxError) else lines[-1]
                text = (str(error).strip().splitlines() or ["(no message)"])[0]
                raise OptionError(f"{path}:{number} raised {type(error).__name__}: {text}") from error
        raise


def _told(name: str, call: Callable[[], Any]) -> Any:
    """What a call of a user's function returns; whatever it raises is one line."""
    try:
        with blaming(name):
            return call()
    except StokerError:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or ["(no message)"])[0]
        raise OptionError(f"{name} raised {type(error).__name__}: {text}") from error
