"""Compiling is announced once, on a terminal, when it really happens; a kernel from the cache says nothing.

The cache: whatever became of its files or folders, a kernel computes what it should, and nothing of somebody else is unpickled.
"""

from __future__ import annotations

import importlib
import os
import pickle
import pty
import runpy
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

import stoker
from stoker import _kernels as kernels

LINE = "stoker: compiling kernels for this machine"

TWO_KERNELS = """
from threading import Thread
from stoker._kernels import kernel

@kernel
def double(x):
    return 2 * x

@kernel
def triple(x):
    return 3 * x

threads = [Thread(target=double, args=(1,)), Thread(target=triple, args=(1,))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(double(2), triple(2), double(0.5))
"""


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script with a cache of its own; returns what it printed, and what it wrote to standard error."""

    def run_script(text: str, *words: str, terminal: bool = True, **environment: str) -> tuple[str, str]:
        script = tmp_path / "script.py"
        script.write_text(text)  # in a file, as numba keeps no kernel without one
        os.utime(script, (1_000_000_000, 1_000_000_000))  # which makes the cache valid for the next run
        ours, theirs = pty.openpty()
        inherited = {name: value for name, value in os.environ.items() if name != kernels.ANNOUNCE}
        child = subprocess.Popen(
            [sys.executable, str(script), *words],
            cwd=tmp_path,
            env={**inherited, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), **environment},
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        seen = _read_all(ours)
        os.close(ours)
        printed, written = child.communicate(timeout=280)
        assert child.returncode == 0, written or seen
        return printed, seen if terminal else written

    return run_script


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:  # a terminal that nobody writes to any more is an error on Linux
        pass
    return b"".join(parts).decode()


def test_compiling_is_announced_once_on_a_terminal_and_not_again_from_the_cache(run: Run) -> None:
    printed, written = run(TWO_KERNELS)
    assert printed == "4 6 1.0\n"
    assert written.count(LINE) == 1
    assert written.startswith(LINE)
    assert written.count("\n") == 1
    assert run(TWO_KERNELS) == (printed, "")


# ---- the cache ----

TINY = """
from stoker._kernels import kernel

@kernel
def double(x):
    return 2 * x

@kernel
def triple(x):
    return 3 * x
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The kernels of a file, each time as a new process has them; its cache is `tmp_path / "cache" / "kernels"`."""
    monkeypatch.setenv(kernels.CACHE, str(tmp_path / "cache"))
    path = tmp_path / "tiny.py"

    def load(text: str = TINY) -> Any:
        path.write_text(text)
        kernels._source_hash.cache_clear()
        kernels._warn_once.cache_clear()
        return SimpleNamespace(**runpy.run_path(str(path)))

    return load


def from_cache(function: Any) -> bool:
    """Whether the one form of a kernel that was used came from the cache."""
    hits, misses = sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values())
    assert hits + misses == 1
    return bool(hits)


def cached_file(folder: Path, name: str) -> Path:
    [path] = (folder / "kernels").glob(f"tiny.{name}-*")
    return path


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in its head": lambda data: data[:20],
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "a sector of zeros": lambda data: data[:1024] + bytes(512) + data[1536:],
    "garbage": lambda data: bytes(range(256)) * 40,
    "a flipped bit": lambda data: data[:-300] + bytes([data[-300] ^ 1]) + data[-299:],
    "longer": lambda data: data + b"x",
}


@pytest.mark.promise("P6")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_compiled_again_and_replaced(tiny: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    assert (tiny().double(2), tiny().triple(2)) == (4, 6)
    path = cached_file(tmp_path / "cache", "double")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    for again in (False, True):
        found = tiny()
        assert (found.double(2), from_cache(found.double)) == (4, again)
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.promise("P6", control=True)
def test_negative_control_numbas_own_cache_fails_with_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    (tmp_path / "own.py").write_text("from numba import njit\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n")
    assert runpy.run_path(str(tmp_path / "own.py"))["double"](2) == 4
    [index] = (tmp_path / "numba").rglob("*.nbi")
    index.write_bytes(b"")
    with pytest.raises(EOFError):
        runpy.run_path(str(tmp_path / "own.py"))["double"](2)


@pytest.mark.promise("P6", control=True)
def test_a_file_under_the_name_of_another_kernel_is_not_used(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the negative control: without the hash, 2 * 2 is 6."""
    for has_hash, product in ((True, 4), (False, 6)):
        if not has_hash:
            monkeypatch.setattr(kernels._Cache, "_head", lambda *_: bytes(kernels._HEAD_BYTES))
        found = tiny()
        assert (found.double(2), found.triple(2)) == (4, 6)
        double, triple = (cached_file(tmp_path / "cache", name) for name in ("double", "triple"))
        double.write_bytes(triple.read_bytes())
        assert tiny().double(2) == product


def test_a_kernel_is_compiled_again_when_its_file_or_a_version_changes(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for again in (False, True):
        found = tiny().double
        assert (found(2), from_cache(found)) == (4, again)
    changed = TINY.replace("2 * x", "FACTOR * x") + "\nFACTOR = 5\n"
    assert tiny(changed).double(2) == 10
    assert tiny(changed.replace("FACTOR = 5", "FACTOR = 7")).double(2) == 14
    assert tiny().double(2) == 4
    for module in (stoker, numba):
        monkeypatch.setattr(module, "__version__", "0.0.test")
        renewed = tiny().double
        assert (renewed(2), from_cache(renewed)) == (4, False)


def test_old_versions_of_a_kernel_are_removed(tmp_path: Path, tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MOST_VERSIONS", 2)
    assert tiny().triple(2) == 6
    for factor in (2, 3, 4):
        assert tiny(TINY.replace("2 *", f"{factor} *")).double(2) == 2 * factor
    assert len(list((tmp_path / "cache" / "kernels").glob("tiny.double-*"))) == 2
    for text, name, again in ((TINY, "triple", True), (TINY.replace("2 *", "4 *"), "double", True), (TINY, "double", False)):
        found = getattr(tiny(text), name)
        found(2)
        assert from_cache(found) == again


def test_a_kernel_is_compiled_again_when_a_function_or_constant_of_another_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.CACHE, str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "kernels_of_two_files"
    package.mkdir()
    (package / "constants.py").write_text("FACTOR = 2\n")
    (package / "shared.py").write_text("from stoker._kernels import kernel\n@kernel\ndef scale(x, by):\n    return x * by\n")
    (package / "main.py").write_text(
        "from stoker._kernels import kernel\n"
        "from kernels_of_two_files.constants import FACTOR\n"
        "from kernels_of_two_files.shared import scale\n"
        "@kernel\ndef double(x):\n    return below(x)\n"
        "@kernel\ndef below(x):\n    return scale(x, FACTOR)\n"
    )

    def load() -> Any:
        for name in [name for name in sys.modules if name.startswith("kernels_of_two_files")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        kernels._source_hash.cache_clear()
        return importlib.import_module("kernels_of_two_files.main").double

    def change(file: str, before: str, after: str) -> None:
        path = package / file
        path.write_text(path.read_text().replace(before, after))

    for again in (False, True):
        found = load()
        assert (found(3), from_cache(found)) == (6, again)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shutil.rmtree(package / "__pycache__", ignore_errors=True)
    change("constants.py", "= 2", "= 5")
    assert load()(3) == 15
    change("shared.py", "x * by", "x * by + 1")
    assert load()(3) == 16


ran: list[str] = []


def run_foreign_code(what: str) -> None:
    ran.append(what)


class Planted:
    """What a pickle of somebody else may do."""

    def __reduce__(self) -> Any:
        return run_foreign_code, ("anything",)


def plant(path: Path, cache: Any) -> None:
    payload = pickle.dumps(Planted())
    path.write_bytes(cache._head(path.name, payload) + payload)


Change = Callable[[Path, pytest.MonkeyPatch], object]


def of_mode(mode: int) -> Change:
    return lambda folder, patch: folder.chmod(mode)


def given_away(folder: Path, patch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    patch.setattr(os, "geteuid", lambda: owner + 1)


def linked(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """It may lead to a folder of one's own with files of somebody else, such as an unpacked archive."""
    folder.rename(folder.parent.parent / "unpacked")
    folder.symlink_to(folder.parent.parent / "unpacked")


@pytest.mark.promise("P6")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (of_mode(0o777), "can be written by others (mode 0777, expected 0700)"),
        (of_mode(0o770), "can be written by others (mode 0770, expected 0700)"),
        (of_mode(0o702), "can be written by others (mode 0702, expected 0700)"),
        (given_away, f"belongs to user {os.geteuid()}, but this process runs as user {os.geteuid() + 1}"),
        (linked, "cannot be kept on disk"),
        (of_mode(0o755), None),
        (of_mode(0o700), None),
    ],
)
def test_a_folder_that_others_may_have_written_is_refused(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, told: str | None
) -> None:
    """And the negative control: what lies in a folder of one's own is unpickled, so whoever can write there can run code."""
    first = tiny()
    assert first.double(2) == 4
    folder = tmp_path / "cache" / "kernels"
    plant(cached_file(tmp_path / "cache", "double"), first.double._cache)
    change(folder, monkeypatch)
    ran.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert tiny().double(2) == 4
    assert len(ran) == (told is None)
    assert (told is not None) == bool(warned)
    assert all(str(told) in str(warning.message) for warning in warned)
    folder.chmod(0o700)


@pytest.mark.promise("P6")
def test_the_folder_is_private_whatever_the_umask_says(tiny: Callable[..., Any], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert tiny().double(2) == 4
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / "cache" / name).stat().st_mode) for name in ("", "kernels")] == [0o700, 0o700]


def test_without_a_home_that_can_be_written_the_cache_is_a_temporary_one(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kernels.CACHE)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for again in (False, True):
        found = tiny().double
        assert (found(2), from_cache(found)) == (4, again)
    assert len(list((tmp_path / f"stoker-kernels-{os.geteuid()}").iterdir())) == 1


def test_where_no_folder_can_be_written_each_process_compiles_and_says_why(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.CACHE, "/dev/null/cache")
    tiny_kernels = tiny()
    with pytest.warns(
        RuntimeWarning, match=r"cannot be kept on disk.*: /dev/null/cache: Not a directory .* Set STOKER_CACHE to a"
    ) as told:
        assert [getattr(tiny_kernels, name)(2) for name in ("double", "triple")] == [4, 6]
    assert len(told) == 1
