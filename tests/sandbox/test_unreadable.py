"""Files that are held out: no way of reading them works, in each mode, as root and as another user."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.reading_attacks import ATTACKS

from stoker.sandbox.unreadable import is_above, other_mounts, readable_around

WHO = ["root", "user"] if os.geteuid() == 0 else ["user"]
PLAIN = {"read", "copy", "map", "symbolic link", "symbolic link that was there", "link to the folder", "hard link", "descriptor",
         "folder's descriptor", "another process", "a copy by another process", "folder that is held out", "rename",
         "root of other processes"}  # fmt: skip
"""Attacks that need no rights."""


SAME_RIGHTS = """
import os, sys
from stoker.sandbox.unreadable import drop_capabilities
if os.geteuid() == 0:
    drop_capabilities()
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process_with_the_same_rights() -> Iterator[None]:
    """A process outside the sandbox that a sealed one may look into by its capabilities, such as that of another judgement."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SAME_RIGHTS], **pipes) as process:
        process.stdout.readline()  # type: ignore[union-attr]
        yield
        process.kill()


@functools.cache
def attempts(mode: str, who: str) -> dict[str, str]:
    # Not `tmp_path`: another session of pytest closes the folder around it to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "tests.sandbox.reading_attacks", folder, mode, who]
        with process_with_the_same_rights():
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout)
    return results


@pytest.mark.promise("P35")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_no_attack_reads_what_is_held_out(mode: str, who: str) -> None:
    results = dict(attempts(mode, who))
    assert results.pop("what is next to it") == "other rows"
    assert set(results) == set(ATTACKS)
    assert [name for name, result in results.items() if result in ("READ", "other bytes")] == []


@pytest.mark.promise("P35", control=True)
@pytest.mark.parametrize("who", WHO)
def test_negative_control_unprotected_they_read_it(who: str) -> None:
    results = attempts("off", who)
    assert {name for name, result in results.items() if result == "READ"} >= PLAIN


def test_what_is_readable_is_all_but_the_held_out_files(tmp_path: Path) -> None:
    for name in ("data/valid.pt", "data/train.pt", "data/deep/a", "held/b", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("data/valid.pt")
    (tmp_path / "up").symlink_to("data")
    held = {str(tmp_path / "data" / "valid.pt"), str(tmp_path / "held")}
    readable = set(readable_around(held))
    here = {os.path.relpath(path, tmp_path) for path in readable if path.startswith(str(tmp_path))}
    assert here == {"data/train.pt", "data/deep", "train.py"}
    assert not any(is_above(path, held) for path in readable)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_file_on_a_disk_that_is_mounted_twice_has_two_names(tmp_path: Path) -> None:
    code = "import sys; from stoker.sandbox.unreadable import other_mounts; print(other_mounts(sys.argv[1] + '/data/valid.pt'))"
    (tmp_path / "data").mkdir()
    (tmp_path / "again").mkdir()
    (tmp_path / "data" / "valid.pt").write_text("x")
    script = f'mount --bind {tmp_path}/data {tmp_path}/again && exec {sys.executable} -c "{code}" {tmp_path}'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([f"{tmp_path}/again/valid.pt"])
    assert other_mounts(str(tmp_path / "data" / "valid.pt")) == []
