"""Packages that only some need: imported when a writer is made, so that a missing one is known before training starts."""

from __future__ import annotations

import importlib
from typing import Any

from stoker.errors import OptionError


def import_extra(module: str, *, writer: str, extra: str) -> Any:
    """The module, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(f"{writer} needs a package that is missing ({error}). Run: pip install 'stoker[{extra}]'") from error
