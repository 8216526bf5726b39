"""Tries: fixes that are put into an unchanged program from outside, one a file, by the names that advice gives them.

A fix stands between torch and the program: `trial` runs the program with it in a fresh process, `stoker.diagnose.trying` compares.
"""

from __future__ import annotations

from importlib import import_module

from stoker.diagnose.tries.fix import Fix
from stoker.errors import OptionError

FIXES = {
    "autocast": "Autocast",
    "batch": "Batch",
    "cached": "Cached",
    "compile": "Compile",
    "cudnn": "Cudnn",
    "feed": "Gathered",
    "fused": "Fused",
    "graph": "Graph",
    "malloc": "Malloc",
    "pinned": "Pinned",
    "sdpa": "Attention",
    "tf32": "Tf32",
    "threads": "Threads",
    "workers": "Workers",
}
"""The class of each fix; its file has the name of the fix."""


def fix_named(name: str) -> type[Fix]:
    """The fix of this name."""
    if name not in FIXES:
        raise OptionError(f"there is no fix {name!r}; expected one of {', '.join(FIXES)}.")
    found: type[Fix] = getattr(import_module(f"stoker.diagnose.tries.{name}"), FIXES[name])
    return found
