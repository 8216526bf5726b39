"""Compiled kernels: `kernel` compiles a function with numba and caches it on disk; intrinsics for memory and float flags.

Kernels release the GIL and use the arithmetic of NumPy. They have no parallel loops: threads work on different batches instead
(nested thread pools collapse on a busy machine).

The cache holds one file per kernel, signature and source, so that all installations of one source share it. Its content is machine
code and a pickle, so it is read only from a folder that belongs to this user and that no other user can write (SECURITY.md). A hash over
the content comes first: what a power loss, a full disk or a flipped bit made of a file is never unpickled, but compiled again. A kernel
is also compiled again when its own file, the file of a function that it calls, a constant that it uses, or the version of stoker or
numba changes.

Compiling takes seconds, so the first kernel that a process compiles is announced on a terminal. Numba notifies listeners of
compilations only, so calls and loads from the cache are not slowed down.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import llvmlite
import numba
import numpy as np
import xxhash
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils, event, serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.extending import intrinsic

import stoker
from stoker import _cache_files, _disk
from stoker._clock import now_ns
from stoker.errors import DiskError

F = TypeVar("F", bound=Callable[..., object])

ANNOUNCE = "STOKER_ANNOUNCE"
"""Environment variable: 1 announces compilation everywhere, 0 nowhere."""
CACHE = "STOKER_CACHE"
"""Environment variable: the folder of all caches of stoker."""

_LINE = "stoker: compiling kernels for this machine; this takes some seconds, once …\n"
_MAGIC = b"stoker kernel 1\n"
_HEAD_BYTES = len(_MAGIC) + 16
_MOST_VERSIONS = 8
"""Files of one kernel and signature that are kept: sources of several installations, or of several edits."""


def kernel(function: F) -> F:
    """Compile a function on its first call, or load it from the cache."""
    compiled: F = njit(nogil=True, error_model="numpy")(function)
    # What njit(cache=True) sets too, to a cache that fails where a file is damaged or no folder can be written.
    compiled._cache = _Cache(function)  # type: ignore[attr-defined]
    _announcer.kernels.add(compiled)
    return compiled


def cache_folders() -> list[Path]:
    """The folders that are searched for compiled kernels. A new one is saved in the first that is writable.

    `$STOKER_CACHE/kernels` or `$NUMBA_CACHE_DIR/stoker-kernels` alone, where one of the variables is set; else
    `$XDG_CACHE_HOME/stoker/kernels` (`~/.cache/…` without the variable), then a folder of this user in `$TMPDIR` or `/tmp`.
    """
    if named := os.environ.get(CACHE):
        return [Path(named).absolute() / "kernels"]
    if named := numba.config.CACHE_DIR:
        return [Path(named).absolute() / "stoker-kernels"]
    # A user without a home is left with "~", which is not absolute; Path.expanduser would raise.
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    # Directly below /tmp, where others may put links and folders: the checked folder is the only one that they can replace.
    temporary = Path(os.environ.get("TMPDIR") or "/tmp", f"stoker-kernels-{os.geteuid()}")
    return [folder for folder in (user / "stoker" / "kernels", temporary) if folder.is_absolute()]


class _Cache(NullCache):  # type: ignore[misc]
    """The compiled forms of one function on disk, for numba's dispatcher. A disk error does not fail a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        plain = function.__qualname__.replace("<", "").replace(">", "")
        self._prefix = f"{Path(code.co_filename).stem}.{plain}"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._function = repr((function.__module__, function.__qualname__, sys.implementation.cache_tag)).encode()
        self._function += serialize.dumps(cells) if cells else b""
        # Hashed now, as the file may change until the first call. What was typed at a prompt has no file, so it is not cached.
        self._is_on = _source_hash(code.co_filename) is not None
        self._compiled = function

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
        """Save a compiled form for the next process."""
        if not self._is_on or data.library.has_dynamic_globals or any(not lifted.can_cache for lifted in data.lifted):
            return
        name, payload = self._name(sig, data.target_context), serialize.dumps(data._reduce())
        problems = []
        for folder in cache_folders():
            try:
                _cache_files.make_cache_folder(folder)
                with _disk.naming(folder), _opened(folder):
                    _cache_files.write_cache_file(folder / name, self._head(name, payload) + payload)
                    _cache_files.keep_newest(folder, name.rpartition("-")[0] + "-", _MOST_VERSIONS)
            except OSError as error:
                problems.append((error.strerror or str(error)).rstrip("."))
            else:
                return
        problem = f"compiled kernels cannot be kept on disk, so each process compiles them again: {'; '.join(problems)}"
        _warn_once(f"{problem}. Set {CACHE} to a folder that you can write.")

    def _name(self, signature: Any, context: Any) -> str:
        """One file per version of a function, wherever it is installed, beside those of other types and other CPUs."""
        identity = self._function + repr((signature, context.codegen().magic_tuple())).encode()
        return f"{self._prefix}-{xxhash.xxh3_64_hexdigest(identity)}-{xxhash.xxh3_64_hexdigest(self._stamp)}"

    @functools.cached_property
    def _stamp(self) -> bytes:
        """All that the machine code depends on. At the first call, as a kernel may call functions that are defined below it."""
        versions = (stoker.__version__, numba.__version__, llvmlite.__version__)
        code = self._compiled.__code__
        return repr((_dependencies(self._compiled), code.co_firstlineno, versions)).encode() + code.co_code

    def _head(self, name: str, payload: bytes) -> bytes:
        return _MAGIC + xxhash.xxh3_128_digest(self._stamp + name.encode() + payload)


def _dependencies(function: Callable[..., Any]) -> list[str]:
    """Hashes of the files of a function and of all functions of its package that it calls, and the constants that these use."""
    package = function.__module__.partition(".")[0]
    hashes: set[str] = set()
    seen: set[object] = set()
    pending: list[Any] = [function]
    while pending:
        function_ = pending.pop()
        if function_ in seen:
            continue
        seen.add(function_)
        hashes.add(str(_source_hash(function_.__code__.co_filename)))
        for name in function_.__code__.co_names:
            value = function_.__globals__.get(name)
            value = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, of an intrinsic
            if isinstance(value, FunctionType) and value.__module__.partition(".")[0] == package:
                pending.append(value)
            elif isinstance(value, bool | int | float | tuple | np.generic):
                hashes.add(f"{name} = {value!r}")
    return sorted(hashes)


@functools.cache
def _source_hash(path: str) -> str | None:
    """Hashed when a file is imported, as it may change before its kernels are compiled."""
    try:
        return xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    except OSError:
        return None


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Untrusted(DiskError):
    """A folder that another user can write to."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder, checked after opening, so that it stays the one that was checked.

    Links are not followed: another user's link may lead to any folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise _Untrusted(f"{folder} belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _Untrusted(f"{folder} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}, expected 0700)")
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


class _Announcer(event.Listener):  # type: ignore[misc]
    """Writes one line when the first kernel is compiled, and adds up the time of all. Numba compiles under a lock: one thread is here."""

    def __init__(self) -> None:
        self.kernels: set[object] = set()
        self._said = False
        self._depth = self._began_ns = 0
        self.total_ns = 0

    def on_start(self, event: Any) -> None:
        """A function is about to be compiled; it may belong to another library, or be one that the function before calls."""
        if not self._depth:
            self._began_ns = now_ns()
        self._depth += 1
        if self._said or event.data["dispatcher"] not in self.kernels:
            return
        self._said = True
        stream, asked = sys.stderr, os.environ.get(ANNOUNCE, "")
        if stream is None or asked == "0":
            return
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not stop the compilation
            if asked or stream.isatty():
                stream.write(_LINE)
                stream.flush()

    def on_end(self, event: Any) -> None:
        """A function was compiled, or could not be."""
        self._depth -= 1
        if not self._depth:
            self.total_ns += now_ns() - self._began_ns


_announcer = _Announcer()
event.register("numba:compile", _announcer)


# Intrinsics: memory operations beyond loads and stores, and the overflow flag of the processor.
#
# `copy_bytes` is memcpy. `prefetch` requests a cache line ahead of its use, into the second level: a core can wait for more lines there
# than in the first, which bounds random reads (bench_gather). `move_line` copies 256 bytes with non-temporal stores: a batch larger
# than the second level would only evict the source from the caches. After such stores `publish` must run before another thread or
# device reads. `clear_overflow` and `saw_overflow` read the flag that a processor sets when a finite number becomes infinite.

LINE_BYTES = 256
ALIGNMENT = 64

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES, _VECTORS = 8, 4  # 4 vectors of 8 words of 8 bytes make the 256 bytes
_SECOND_LEVEL = 2

Generated = tuple[Any, Callable[..., Any]]


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic of numba. Kernels call it without the first argument, which the compiler adds."""
    known: Callable[..., Any] = intrinsic(function)
    return known


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    data = cgutils.create_struct_proxy(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _I8.as_pointer()), [offset])


@_intrinsic
def copy_bytes(typing: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Generated:
    """Copy `count` bytes from `source` (at byte `start`) to `target` (at byte `to`); both are arrays."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, start, count = arguments
        kinds = signature.args
        first, origin = _address(context, builder, kinds[0], target, to), _address(context, builder, kinds[2], source, start)
        cgutils.raw_memcpy(builder, first, origin, count, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@_intrinsic
def clear_bytes(typing: Any, target: Any, to: Any, count: Any) -> Generated:
    """Set `count` bytes of the array `target` to zero, from byte `to` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, count = arguments
        cgutils.memset(builder, _address(context, builder, signature.args[0], target, to), count, 0)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), generate


@_intrinsic
def prefetch(typing: Any, source: Any, start: Any) -> Generated:
    """Prefetch the cache line at byte `start` of the array `source`. Any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, _I32(0), _I32(_SECOND_LEVEL), _I32(1)])
        return context.get_dummy_value()

    return types.void(source, types.int64), generate


def _line_copier(*, streaming: bool, scaled: bool) -> Callable[..., Any]:
    """An intrinsic that copies 256 bytes, past the caches (`streaming`) or through them, and scales floats on the way (`scaled`)."""
    step = _LANES * 8

    def make(target: Any, source: Any) -> Generated:
        vector = ir.VectorType(_I64, _LANES)
        if scaled:
            word = ir.FloatType() if source.dtype == types.float32 else ir.DoubleType()
            vector = ir.VectorType(word, step // (source.dtype.bitwidth // 8))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, to, source, start, *numbers = arguments
            first = _address(context, builder, signature.args[0], target, to)
            origin = _address(context, builder, signature.args[2], source, start)

            def part(address: Any, i: int) -> Any:
                return builder.bitcast(builder.gep(address, [_I64(i * step)]), vector.as_pointer())

            def spread(number: Any) -> Any:
                lanes = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
                return builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count))

            spreads = [spread(number) for number in numbers]
            words = [builder.load(part(origin, i), align=1) for i in range(_VECTORS)]
            for i, word in enumerate(words):
                if scaled:
                    word = builder.fdiv(builder.fsub(word, spreads[0]), spreads[1])
                store = builder.store(word, part(first, i), align=step if streaming else 1)
                if streaming:
                    store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
            return context.get_dummy_value()

        numbers = (source.dtype, source.dtype) if scaled else ()
        return types.void(target, types.int64, source, types.int64, *numbers), generate

    def copy(typing: Any, target: Any, to: Any, source: Any, start: Any) -> Generated:
        return make(target, source)

    def scale(typing: Any, target: Any, to: Any, source: Any, start: Any, center: Any, divisor: Any) -> Generated:
        return make(target, source)

    return _intrinsic(scale if scaled else copy)


move_line = _line_copier(streaming=True, scaled=False)
"""Copy 256 bytes past the caches; the target's address must be a multiple of 64."""
keep_line = _line_copier(streaming=False, scaled=False)
"""Copy 256 bytes through the caches."""
move_scaled = _line_copier(streaming=True, scaled=True)
"""Like `move_line` for floats, which become (x - center) / divisor."""
keep_scaled = _line_copier(streaming=False, scaled=True)
"""Like `keep_line` for floats, which become (x - center) / divisor."""


@_intrinsic
def lowest_bit(typing: Any, bits: Any) -> Generated:
    """The place of the lowest bit that is set, 0 to 63, of a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@_intrinsic
def publish(typing: Any) -> Generated:
    """Make all stores of this thread visible before what follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_FE_OVERFLOW = {"x86_64": 8, "aarch64": 4}.get(platform.machine())
"""FE_OVERFLOW of <fenv.h>; None where it is unknown."""


def _find_flags() -> bool:
    """Register functions of the C library for compiled kernels; False where they are missing."""
    if _FE_OVERFLOW is None:
        return False
    library = ctypes.CDLL(None)
    for name in ("feclearexcept", "fetestexcept"):
        if not hasattr(library, name):
            return False
        binding.add_symbol(f"stoker_{name}", ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return True


_HAS_FLAGS = _find_flags()


def _call_flags(builder: Any, name: str) -> Any:
    # The compiler does not know this function, so it moves no store across the call.
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [_I32]), name)
    return builder.call(function, [_I32(_FE_OVERFLOW)])


@_intrinsic
def clear_overflow(typing: Any) -> Generated:
    """Clear the overflow flag of this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _HAS_FLAGS:
            _call_flags(builder, "stoker_feclearexcept")
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def saw_overflow(typing: Any) -> Generated:
    """Whether a finite number became infinite in this thread since `clear_overflow`; also True where that is unknown."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _HAS_FLAGS:
            return context.get_constant(types.boolean, True)
        return builder.icmp_signed("!=", _call_flags(builder, "stoker_fetestexcept"), _I32(0))

    return types.boolean(), generate


def compile_ns() -> int:
    """Return the time that this process has spent compiling kernels so far, in ns."""
    return _announcer.total_ns
