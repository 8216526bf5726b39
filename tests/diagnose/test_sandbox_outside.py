"""What other processes and databases write is told, with the line of the user's that had it done."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.diagnose import hooks as listening
from stoker.diagnose.sandbox import MAX_LENGTH, OutsideWrites

PROGRAM = """
import io, os, sqlite3, subprocess, sys, platform
def database(name): sqlite3.connect(name).close()
def system(command): os.system(command)
def process(words): subprocess.run(words, check=True)
def shell(command): subprocess.run(command, shell=True, check=True)
def spawn(words): os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)
def opened(command): os.popen(command).close()
def raw(name): io.FileIO(name, "w").close()
def read(name): io.FileIO(name).close()
def asked(_): platform.uname(); platform.architecture()
"""

Do = Callable[[str, object], None]


@pytest.fixture
def outside() -> Iterator[OutsideWrites]:
    outside = OutsideWrites(lambda path: not os.fsdecode(path).endswith((".py", ".pyc")))
    outside.install()
    yield outside
    outside.remove()


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Do:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("train", tmp_path / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name, argument: getattr(module, name)(argument)


@pytest.mark.parametrize(
    ("name", "argument", "told"),
    [
        ("database", "metrics.db", "the database metrics.db (train.py:3)"),
        ("system", "true > a.txt", "`true > a.txt` (train.py:4)"),
        ("process", ["true", "a b"], "`true 'a b'` (train.py:5)"),
        ("process", "true", "`true` (train.py:5)"),
        ("shell", "true\n true", "`true true` (train.py:6)"),
        ("spawn", ["/bin/true"], "`/bin/true` (train.py:7)"),
        ("opened", "true", "`true` (train.py:8)"),
        ("raw", "a.bin", "the file a.bin (train.py:9)"),
    ],
)
def test_each_way_is_reported_once(outside: OutsideWrites, do: Do, name: str, argument: object, told: str) -> None:
    for _ in range(2):
        do(name, argument)
    [note] = outside.notes()
    assert note.endswith(f"may have changed your files: {told}.")


def test_many_are_counted_and_long_ones_cut(outside: OutsideWrites, do: Do) -> None:
    for number in range(5):
        do("system", f"true {number} {'x' * 100}")
    [note] = outside.notes()
    assert "and 2 more" in note
    assert f"`{'true 0 ' + 'x' * (MAX_LENGTH - 8)}…`" in note


@pytest.mark.parametrize("name", [":memory:", ""])
def test_what_leaves_no_file_is_not_reported(outside: OutsideWrites, do: Do, name: str) -> None:
    do("database", name)
    assert outside.notes() == []


def test_what_is_read_or_may_be_written_is_not_reported(outside: OutsideWrites, do: Do) -> None:
    do("read", "train.py")
    do("raw", "train.pyc")
    assert outside.notes() == []


def test_what_python_asks_for_itself_is_not_reported(outside: OutsideWrites, do: Do) -> None:
    do("asked", None)
    assert outside.notes() == []


def test_negative_control_who_does_not_listen_hears_nothing(outside: OutsideWrites, do: Do) -> None:
    outside.remove()
    do("system", "true")
    assert outside.notes() == []


def test_listening_again_and_again_leaves_one_hook_that_calls_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps audit hooks for good: one each made every later open and setenv of the process slower."""
    hooks: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    monkeypatch.setattr(listening, "_is_hooked", False)
    before = list(listening._listeners)
    for _ in range(5):
        one = OutsideWrites(lambda path: False)
        one.install()
        one.remove()
    assert len(hooks) == 1
    assert listening._listeners == before
