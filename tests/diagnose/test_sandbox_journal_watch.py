"""The watch on system calls: the paths that it reports, and what a program gets that may not change a file."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.diagnose import sandbox_journal

PROGRAM = """
import os, socket, sys
from stoker.diagnose import sandbox_journal
answers = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(answers, [b"."], [sandbox_journal.install_watch()])
answers.recv(1)
"""


def watched(code: str, folder: Path, *, refuses: str = "") -> tuple[list[tuple[str, bool, bool]], str]:
    """The paths that a program reports, relative to its folder, and what it prints."""
    found = []

    def before(path: str, *, removes: bool, moves: bool) -> None:
        if path.startswith(str(folder.resolve())):
            name = os.path.relpath(path, folder.resolve())
            found.append((name, removes, moves))
            if name == refuses:
                raise OSError(errno.EDQUOT, "no room for a copy")

    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", PROGRAM + code, str(theirs.fileno())]
        child = subprocess.Popen(command, cwd=folder, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        watch = sandbox_journal.WriteWatch(descriptors[0], before)
        ours.sendall(b".")
        printed, _ = child.communicate(timeout=60)
    watch.close()
    return found, printed


def test_changes_are_reported_with_full_paths_and_reads_are_not(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    (tmp_path / "a").write_text("1")
    code = """
open("a").close(); os.listdir("."); os.stat("a")
open("a", "a").close()
os.open("link/b", os.O_CREAT | os.O_WRONLY)
os.chdir("sub")
os.rename("b", "../c")
os.symlink("nowhere", "d")
os.unlink("d")
os.open(".", os.O_TMPFILE | os.O_RDWR)
os.mkdir("e"); os.rmdir("e")
os.system("echo 1 > f")
os.fchmod(os.open("f", os.O_RDONLY), 0o600)
here = os.open("..", os.O_RDONLY)
os.truncate("../a", 0); os.utime("f"); os.link("f", "g", dst_dir_fd=here)
"""
    found, _ = watched(code, tmp_path)
    assert found == [
        ("a", False, False),
        ("sub/b", False, False),
        ("sub/b", False, True),
        ("c", False, True),
        ("sub/d", False, False),
        ("sub/d", True, False),
        ("sub/e", False, False),
        ("sub/e", True, False),
        ("sub/f", False, False),
        ("sub/f", False, False),
        ("a", False, False),
        ("sub/f", False, False),
        ("sub/f", False, False),
        ("g", False, False),
    ]


@pytest.mark.parametrize("refuses", ["", "a"])
def test_what_could_not_be_saved_is_not_changed(tmp_path: Path, refuses: str) -> None:
    (tmp_path / "a").write_text("precious")
    code = """
try: open("a", "w").close()
except OSError as error: print(error.errno)
"""
    _, printed = watched(code, tmp_path, refuses=refuses)
    assert printed == (f"{errno.EDQUOT}\n" if refuses else "")
    assert (tmp_path / "a").read_text() == ("precious" if refuses else "")
