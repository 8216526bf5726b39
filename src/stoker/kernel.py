"""THE compiler of kernels: compiled once per machine and kept on disk, free of the GIL, with the arithmetic of NumPy.

Kernels have no parallel loops: threads work on different batches instead (nested thread pools collapse on a busy machine).

The cache holds one file per kernel and signature. Its content is machine code and a pickle, so it is read only from a folder that
belongs to this user and that nobody else can write (SECURITY.md). A hash over the content comes first: what a power loss, a full
disk or a flipped bit made of a file is never unpickled, but compiled again. A kernel is also compiled again when its own file
changes, or the version of stoker or numba, but not when a constant of another file does: such numbers are passed as arguments.

Compiling takes seconds, so the first kernel that a process has to compile is announced on a terminal: numba tells its
listeners of each compilation and of nothing else, so that calls and loads from the cache cost nothing and say nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
import xxhash
from numba import njit
from numba.core import event, serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

import stoker
from stoker import files
from stoker.errors import DiskError

F = TypeVar("F", bound=Callable[..., object])

ANNOUNCE = "STOKER_ANNOUNCE"
"""The environment variable that decides where it is set: 1 announces everywhere, 0 nowhere."""
CACHE = "STOKER_CACHE"
"""The environment variable that names the folder of all caches of stoker."""

_LINE = "stoker: compiling kernels for this machine; this takes some seconds, once …\n"
_MAGIC = b"stoker kernel 1\n"
_HEAD_BYTES = len(_MAGIC) + 16


def kernel(function: F) -> F:
    """Compile a function on its first call, or load it from the cache."""
    compiled: F = njit(nogil=True, error_model="numpy")(function)
    # What njit(cache=True) sets too, to a cache that fails where a file is damaged or no folder can be written.
    compiled._cache = _Cache(function)  # type: ignore[attr-defined]
    _announcer.kernels.add(compiled)
    return compiled


def cache_folders() -> list[Path]:
    """The folders that compiled kernels are looked for in. A new one is saved in the first that can be written.

    That is `$STOKER_CACHE/kernels` or `$NUMBA_CACHE_DIR/stoker-kernels` alone, where one of the variables is set; else
    `$XDG_CACHE_HOME/stoker/kernels` (`~/.cache/…` without the variable), and then a folder of this user in `$TMPDIR` or `/tmp`.
    """
    if named := os.environ.get(CACHE):
        return [Path(named).absolute() / "kernels"]
    if named := numba.config.CACHE_DIR:
        return [Path(named).absolute() / "stoker-kernels"]
    # A user without a home is left with "~", which is not absolute; Path.expanduser would raise.
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    # Right below /tmp, where others may put links and folders: the one that is checked is the only one on the way that they can.
    temporary = Path(os.environ.get("TMPDIR") or "/tmp", f"stoker-kernels-{os.geteuid()}")
    return [folder for folder in (user / "stoker" / "kernels", temporary) if folder.is_absolute()]


class _Cache(NullCache):  # type: ignore[misc]
    """The compiled forms of one function on disk, for numba's dispatcher. Nothing that is wrong with a disk is an error here."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        plain = function.__qualname__.replace("<", "").replace(">", "")
        self._prefix = f"{Path(code.co_filename).stem}.{plain}"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._function = repr((code.co_filename, function.__qualname__, code.co_firstlineno, sys.implementation.cache_tag)).encode()
        self._function += serialize.dumps(cells) if cells else b""
        source = _source_hash(code.co_filename)
        self._is_on = source is not None  # what was typed at a prompt has no file that could say when it changes
        self._stamp = repr((source, stoker.__version__, numba.__version__, llvmlite.__version__)).encode() + code.co_code

    @property
    def cache_path(self) -> str:
        """For numba's statistics."""
        return str(cache_folders()[0])

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled form for these types, or None where it has to be compiled."""
        if not self._is_on:
            return None
        target_context.refresh()
        name = self._name(sig, target_context)
        for folder in cache_folders():
            content = _read(folder, name)
            payload = content[_HEAD_BYTES:]
            if content and content[:_HEAD_BYTES] == self._head(name, payload):
                with contextlib.suppress(Exception):  # whole, but of no use to this numba
                    return CompileResult._rebuild(target_context, *serialize.loads(payload))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form where the next process will look for it."""
        if not self._is_on or data.library.has_dynamic_globals or any(not one.can_cache for one in data.lifted):
            return
        name, payload = self._name(sig, data.target_context), serialize.dumps(data._reduce())
        problems = []
        for folder in cache_folders():
            try:
                _write(folder, name, self._head(name, payload) + payload)
            except OSError as error:
                problems.append((error.strerror or str(error)).rstrip("."))
            else:
                return
        _warn_once(
            f"compiled kernels cannot be kept on disk, so each process compiles them again: {'; '.join(problems)}. "
            f"Set {CACHE} to a folder that you can write."
        )

    def _name(self, signature: Any, context: Any) -> str:
        """One file for all versions of a function, so that a change replaces it; another for other types and other CPUs."""
        identity = self._function + repr((signature, context.codegen().magic_tuple())).encode()
        return f"{self._prefix}-{xxhash.xxh3_64_hexdigest(identity)}"

    def _head(self, name: str, payload: bytes) -> bytes:
        return _MAGIC + xxhash.xxh3_128_digest(self._stamp + name.encode() + payload)


@functools.cache
def _source_hash(path: str) -> str | None:
    """Taken when a file is imported: what is compiled from it later is not what the file may have become since."""
    try:
        return xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    except OSError:
        return None


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Untrusted(DiskError):
    """A folder whose files somebody else can have put there."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder, checked after opening, so that it stays the one that was checked.

    Links are not followed: one that somebody else made may lead to a folder of this user with files of his.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise _Untrusted(f"{folder} belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _Untrusted(f"{folder} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}, expected 0700)")
        yield fd
    finally:
        os.close(fd)


def _read(folder: Path, name: str) -> bytes:
    """A file of the cache; empty where there is none that can be trusted."""
    try:
        with _opened(folder) as inside:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
            with os.fdopen(fd, "rb") as file:
                return file.read()
    except _Untrusted as error:
        _warn_once(f"compiled kernels are not read from the cache: {error}. Remove the folder, or set {CACHE} to another one.")
    except OSError:
        pass
    return b""


def _write(folder: Path, name: str, content: bytes) -> None:
    files.make_cache_folder(folder)
    with files.naming(folder), _opened(folder):
        files.write_cache_file(folder / name, content)


class _Announcer(event.Listener):  # type: ignore[misc]
    """Writes one line when the first kernel of this file is compiled. Numba compiles under a lock, so nobody else is here."""

    def __init__(self) -> None:
        self.kernels: set[object] = set()
        self._said = False

    def on_start(self, event: Any) -> None:
        """A function is not in the cache and is about to be compiled; it may be one of somebody else."""
        if self._said or event.data["dispatcher"] not in self.kernels:
            return
        self._said = True
        stream, asked = sys.stderr, os.environ.get(ANNOUNCE, "")
        if stream is None or asked == "0":
            return
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, or closed, is no reason not to compile
            if asked or stream.isatty():
                stream.write(_LINE)
                stream.flush()

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announcer = _Announcer()
event.register("numba:compile", _announcer)
