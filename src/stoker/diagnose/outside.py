"""Outside: what the program does that no scratch folder can catch, for others write there: databases, shells, other programs.

Python tells of it by its audit events. Only what a line of the user's causes is noted, with that line. What torch, stoker or the
workers of a loader start for themselves is not.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from stoker.diagnose.own import is_own, place_of

DATABASE = "sqlite3.connect"
OPENED, VARIABLE = "open", "os.putenv"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
UNNAMED = getattr(os, "O_TMPFILE", 0)
STARTS = ("os.system", "subprocess.Popen", "os.posix_spawn", "os.exec")
NOT_THE_USERS = {"torch", "stoker", "multiprocessing", "triton", "numba", "importlib", "platform", "ctypes", "uuid"}
"""Packages that start programs for reasons of their own."""
MAX_NAMED = 3
MAX_LENGTH = 60


_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []
_is_hooked = False


def _listen(hear: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Python calls audit hooks for good, so there is one for all that listen: a hook each would slow the process down ever more."""
    global _is_hooked
    _listeners.append(hear)
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    for hear in _listeners:
        hear(event, arguments)


class Outside:
    """What was done outside, each once."""

    def __init__(self, protects: Callable[[Any], bool]) -> None:
        self._protects = protects
        """Whether a file of this path is one of the user's that should not be changed."""
        self.on_variable: Callable[[], None] = lambda: None
        """Called before the program sets a variable of the environment."""
        self._done: dict[str, str] = {}
        """Where it was done first, by what it is."""
        self._listens = False
        self._pid = os.getpid()

    def install(self) -> None:
        """Begin to listen."""
        self._listens = True
        _listen(self._hear)

    def remove(self) -> None:
        """Listen no more."""
        if self._listens:
            _listeners.remove(self._hear)
        self._listens = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == OPENED:
            path, _, flags = arguments
            if not flags & WRITING or (UNNAMED and flags & UNNAMED == UNNAMED) or not isinstance(path, str | bytes):
                return
        elif event == VARIABLE:
            self.on_variable()
            return
        elif event != DATABASE and event not in STARTS:
            return
        if not self._listens or os.getpid() != self._pid:
            return
        frame = _causing(sys._getframe(2), event)
        what = _what(event, arguments)
        if frame is not None and what is not None and (event in STARTS or self._protects(arguments[0])):
            place = place_of(frame)
            self._done.setdefault(what, f"{place.file}:{place.line}")

    def notes(self) -> list[str]:
        """What the user should know of it."""
        if not self._done:
            return []
        named = ", ".join(f"{what} ({place})" for what, place in list(self._done.items())[:MAX_NAMED])
        more = f" and {len(self._done) - MAX_NAMED} more" if len(self._done) > MAX_NAMED else ""
        return [f"These write for themselves, so that files of yours may be changed: {named}{more}."]


def _causing(frame: FrameType | None, event: str) -> FrameType | None:
    """The nearest line of the user's; None where somebody else stands between."""
    if event == "os.posix_spawn" and frame is not None and frame.f_globals.get("__name__") == "subprocess":
        return None  # it has told of itself before
    while frame is not None and not is_own(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in NOT_THE_USERS:
            return None
        frame = frame.f_back
    return frame


def _what(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What was done, in a few words; None for what leaves no file."""
    if event == DATABASE:
        name = os.fsdecode(arguments[0])
        return None if name in ("", ":memory:") or "mode=memory" in name or "mode=ro" in name else f"the database {_short(name)}"
    if event == OPENED:
        return f"the file {_short(os.fsdecode(arguments[0]))}"
    words = arguments[0] if event == "os.system" else arguments[1]
    if isinstance(words, str | bytes | os.PathLike):
        return f"`{_short(os.fsdecode(words))}`"
    texts = [os.fsdecode(word) for word in words]
    in_shell = len(texts) == 3 and texts[0].endswith("sh") and texts[1] == "-c"
    return f"`{_short(texts[2] if in_shell else shlex.join(texts))}`"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"
