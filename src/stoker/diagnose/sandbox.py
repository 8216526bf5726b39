"""The sandbox: what a program writes while it is diagnosed goes to a scratch folder, and no file of the user's is changed.

`Scratch` replaces the functions of `os` that take paths by those of the `overlay`, wherever a module keeps them; `open`, `shutil`,
`tempfile`, `pathlib` and `glob` are made of these. `torch.save`, safetensors and others that open files in C++ get the place of a file
instead of its path.

`OutsideWrites` notes what no scratch folder can catch: databases, shells and other programs write for themselves. Python reports them
as audit events. Only what a line of the user's causes is noted, not what torch, stoker or the workers of a loader start.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from stoker import _disk
from stoker.diagnose.file_overlay import FINDING, MARKING, UNNAMED, WRITING, Overlay
from stoker.diagnose.hooks import is_own, listen, place_of, unlisten

WRITERS = ("torch.save", "torch.jit.save", "safetensors.torch.save_file", "safetensors.numpy.save_file")
READERS = ("torch.load", "torch.jit.load", "safetensors.safe_open", "safetensors.torch.safe_open", "pyarrow.memory_map")
"""Functions that open a file by its path in C++, of libraries that are loaded when the program begins or writes a file."""
DATABASES = ("sqlite3.connect", "sqlite3.dbapi2.connect")
KEYWORDS = ("f", "filename", "path", "database")  # names of their argument that is a path
WITH_DEFAULTS = ("tempfile", "glob", "pathlib", "pathlib._local")
"""Modules of the standard library whose classes keep functions of `os`."""
SETS = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")
"""Sets in which `os` says what its functions support."""
DATABASE = "sqlite3.connect"
OPENED, VARIABLE = "open", "os.putenv"
STARTS = ("os.system", "subprocess.Popen", "os.posix_spawn", "os.exec")  # audit events
NOT_THE_USERS = {"torch", "stoker", "multiprocessing", "triton", "numba", "importlib", "platform", "ctypes", "uuid"}
"""Packages that start programs for their own purposes."""
MAX_NAMED = 3
MAX_LENGTH = 60


class Scratch:
    """The scratch folder of a program, and its view of the disk."""

    def __init__(self, folder: Path) -> None:
        self._view = Overlay(folder)
        self._view.on_write = self._lead_readers
        self._outside = OutsideWrites(self._view.protects)
        self._outside.on_variable = lambda: setattr(self._view.pass_through, "variables_changed", True)
        self._undo = ExitStack()

    def install(self) -> None:
        """Replace the functions of `os`, `open` and those in C++."""
        import sqlite3  # noqa: F401

        import safetensors.numpy
        import safetensors.torch  # noqa: F401
        import torch  # noqa: F401

        view = self._view
        view.begin()
        by: dict[str, Any] = {name: view.finding(name) for name in FINDING} | {name: view.marking(name) for name in MARKING}
        by |= {"lstat": view.finding("lstat", follow=False), "lchown": view.marking("lchown", follow=False)}
        by |= {"rename": view.rename, "replace": view.rename, "unlink": view.unlink, "remove": view.unlink}
        by |= {name: getattr(view, name) for name in ("open", "symlink", "link", "readlink", "listdir", "scandir")}
        by |= {"mkdir": view.make_folder, "rmdir": view.remove_folder}
        by |= {name: view.piping(name) for name in ("mkfifo", "mknod")}
        copies = {id(getattr(os, name)): function for name, function in by.items()}
        for name, function in by.items():
            self._replace(os, name, function)
        opened = copies[id(builtins.open)] = self._opening(builtins.open)
        self._replace(builtins, "open", opened)
        self._replace(io, "open", opened)
        self._replace_copies(copies)
        for function in WRITERS:
            self._lead(function, 1, view.to_write)
        for function in DATABASES:
            self._lead(function, 0, view.to_database)
        self._lead_readers()
        self._outside.install()

    def remove(self) -> None:
        """Restore all functions, and remove folders that stayed empty."""
        self._outside.remove()
        self._undo.close()
        for path in map(Path, reversed(self._view.made)):
            if path.is_fifo():
                _disk.remove_file(path)
            elif path.is_dir() and not any(path.iterdir()):
                _disk.disk.rmdir(path)
        self._view.made.clear()

    def _replace(self, owner: Any, name: str, by: Any, *, was: Any = None) -> None:
        original = getattr(owner, name) if was is None else was
        setattr(owner, name, by)
        self._undo.callback(setattr, owner, name, original)
        for kind in SETS if owner is os else ():
            if original in getattr(os, kind):
                getattr(os, kind).add(by)
                self._undo.callback(getattr(os, kind).discard, by)

    def _replace_copies(self, by: dict[int, Any]) -> None:
        """Replace the copies of these functions in loaded modules, such as `lzma` and `tarfile`."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__name__", "") if isinstance(module, ModuleType) else "posix"
            if name in ("os", "posix", "builtins", "io", "_io") or name.startswith(("stoker.", "importlib", "_frozen")):
                continue
            for attribute, value in list(vars(module).items()):
                if id(value) in by:
                    self._replace(module, attribute, by[id(value)])
                elif name in WITH_DEFAULTS and isinstance(value, type) and value.__module__ == name:
                    self._replace_in_class(value, by)

    def _replace_in_class(self, kind: type, by: dict[int, Any]) -> None:
        """Replace copies in classes of the standard library: attributes, and defaults of methods."""
        for attribute, value in list(vars(kind).items()):
            if isinstance(value, staticmethod) and id(value.__func__) in by:
                self._replace(kind, attribute, staticmethod(by[id(value.__func__)]), was=value)
            elif isinstance(value, FunctionType) and any(id(one) in by for one in value.__defaults__ or ()):
                self._replace(value, "__defaults__", tuple(by.get(id(one), one) for one in value.__defaults__ or ()))

    def _opening(self, original: Any) -> Any:
        def low(path: Any, flags: int) -> int:
            return self._view.open(path, flags, 0o666)

        @functools.wraps(original)
        def opened(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | bytes | os.PathLike) and len(args) < 6 and kwargs.get("opener") is None:
                writes = isinstance(mode, str) and set(mode) & set("wax+")
                if writes or self._view.to_read(file) is not file:
                    kwargs["opener"] = low  # so that the file has the name that the program gave
            return original(file, mode, *args, **kwargs)

        return opened

    def _lead(self, function: str, at: int, lead: Callable[[Any], Any]) -> None:
        """Give a function in C++ the place of a file. Its path is argument number `at`, or one of the `KEYWORDS`."""
        module, _, name = function.rpartition(".")
        owner = sys.modules.get(module)
        original = getattr(owner, name, None)
        if original is None or getattr(original, "leads", False):
            return

        @functools.wraps(original, updated=())
        def led(*args: Any, **kwargs: Any) -> Any:
            given = [lead(one) if number == at else one for number, one in enumerate(args)]
            return original(*given, **{key: lead(one) if key in KEYWORDS else one for key, one in kwargs.items()})

        led.leads = True  # type: ignore[attr-defined]
        self._replace(owner, name, led)

    def _lead_readers(self) -> None:
        for function in READERS:
            self._lead(function, 0, self._view.to_read)

    def notes(self) -> list[str]:
        """Notes for the user."""
        found, hidden = [], self._view.hidden
        if self._view.written:
            named = _first_few([os.path.basename(one) for one in self._view.written])  # noqa: PTH119
            found.append(
                f"Files that the program wrote ({named}) went to a scratch folder; your files of these names are unchanged."
            )
        if hidden:
            found.append(f"{hidden} files or folders that the program removed or replaced are unchanged on disk.")
        return [*found, *self._outside.notes()]


# ---- what no scratch folder can catch ----


class OutsideWrites:
    """Writes outside of the sandbox, each noted once."""

    def __init__(self, protects: Callable[[Any], bool]) -> None:
        self._protects = protects  # whether a path is a file of the user's that should not be changed
        self.on_variable: Callable[[], None] = lambda: None  # called before the program sets an environment variable
        self._done: dict[str, str] = {}  # the first line that did it, by what was done
        self._listens = False
        self._pid = os.getpid()

    def install(self) -> None:
        """Start listening."""
        self._listens = True
        listen(self._hear)

    def remove(self) -> None:
        """Stop listening."""
        if self._listens:
            unlisten(self._hear)
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
        """Notes for the user."""
        if not self._done:
            return []
        named = _first_few([f"{what} ({place})" for what, place in self._done.items()])
        return [f"These write outside of the sandbox and may have changed your files: {named}."]


def _causing(frame: FrameType | None, event: str) -> FrameType | None:
    """The innermost line of the user's; None if one of these packages called between."""
    if event == "os.posix_spawn" and frame is not None and frame.f_globals.get("__name__") == "subprocess":
        return None  # which has reported itself before
    while frame is not None and not is_own(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in NOT_THE_USERS:
            return None
        frame = frame.f_back
    return frame


def _what(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What was done, in a few words; None if it leaves no file."""
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


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"
