"""Whose code a line is: the user's own, or that of Python, installed packages and stoker itself. Blame falls on the user's."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path
from types import FrameType

import stoker
from stoker.diagnose.measurements import Place

INSTALLED = ("site-packages", "dist-packages")
_FOREIGN = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(stoker.__file__).parent)}
)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file of code is the user's."""
    if not file.endswith(".py"):
        return "ipykernel" in file or file.startswith("<ipython-input")  # the cells of a notebook
    path = os.path.realpath(file)
    return not path.startswith(_FOREIGN) and not any(part in INSTALLED for part in Path(path).parts)


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's code, from the innermost outwards."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType) -> Place:
    """Where a frame stands."""
    return Place(
        file=shown(frame.f_code.co_filename), line=frame.f_lineno or frame.f_code.co_firstlineno, function=frame.f_code.co_qualname
    )


@functools.cache
def shown(file: str) -> str:
    """A path as the user would write it: from the current folder, where the file is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
