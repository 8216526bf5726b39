"""Stoker or the program is killed while a program is diagnosed: the user's files are as before, and nothing is restored later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.sandbox.home import make_home, state

from stoker import _disk
from stoker.sandbox import sandbox
from stoker.sandbox.sandbox import SCRATCH, VARIABLE, Sandbox

MODES = ["overlay", "landlock"]
NOBODY = 65534
PROGRAM = """
import os, time
from pathlib import Path
Path("model.pt").write_bytes(b"new")
os.rename("run", "elsewhere")
Path("elsewhere/new").write_bytes(b"new")
os.remove("twice.txt"); os.remove("pipe.fifo"); os.chmod("log.txt", 0o600)
parent = os.getpid()
if os.fork() == 0:  # a worker that ends with its parent, as those of a DataLoader do
    while os.getppid() == parent:
        time.sleep(0.05)
        Path("worker.txt").write_text("more")
    os._exit(0)
print(os.getpid(), flush=True)
while True:
    time.sleep(0.05)
    Path("log.txt").write_text("more")
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files of the user's and a program; the temporary and the home folder are of the test."""
    # Not `tmp_path`: another session of pytest closes the folder around it to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield make_files(Path(folder), monkeypatch)


def make_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = folder / "home"
    make_home(home)
    os.link(home / "read-only.txt", home / "twice.txt")
    os.mkfifo(home / "pipe.fifo")
    with contextlib.suppress(OSError):  # not every file system has attributes
        os.setxattr(home / "model.pt", "user.mine", b"1")
    (home / "train.py").write_text(PROGRAM)
    for name, variable in (("user", "HOME"), ("temporary", "TMPDIR")):
        (folder / name).mkdir()
        monkeypatch.setenv(variable, str(folder / name))
    return home


def give_to(user: int, folder: Path) -> None:
    """Give a folder with all that is in it to a user, or skip the test."""
    if os.geteuid() != 0:
        pytest.skip("this user cannot become another one")
    for path in [folder, *folder.rglob("*")]:
        mode = path.lstat().st_mode
        os.chown(path, user, user, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(mode & 0o7777)


def start(home: Path, mode: str, *, user: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stoker", "diagnose", "--sandbox", mode, "train.py"]
    groups: list[int] | None = [] if user is not None else None
    try:
        return subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True, user=user, group=user, extra_groups=groups)
    except PermissionError:
        pytest.skip("Python is installed where another user cannot run it")


def start_program(home: Path, mode: str, *, user: int | None = None) -> tuple[subprocess.Popen[str], int]:
    """A diagnosis whose program has changed files, and the process of the program."""
    process = start(home, mode, user=user)
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        if line.strip().isdigit():
            return process, int(line)
        told.append(line)
    process.wait()
    raise AssertionError("".join(told))


def scratch_folders(home: Path) -> list[str]:
    """Scratch folders that no running diagnosis holds."""
    places = (home.parent / "temporary", Path("/tmp"), Path("/var/tmp"))
    stale = []
    for path in (path for place in places for path in place.glob(f"{SCRATCH}*")):
        with contextlib.suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stale.append(str(path))
            finally:
                os.close(held)
    return sorted(stale)


def processes_in(home: Path) -> list[int]:
    """Processes that run in a folder or in a mirror of it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().endswith(str(home)):
                found.append(process.pid)
    return found


def wait_for_none_in(home: Path) -> None:
    end = time.monotonic() + 20
    while processes_in(home) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes_in(home) == []
    assert str(home.parent) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


@pytest.mark.promise("P18")
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_is_killed(home: Path, mode: str, number: int) -> None:
    before, others = state(home), scratch_folders(home)
    process, program = start_program(home, mode)
    os.kill(program, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"train.py was ended by {signal.Signals(number).name}" in told
    assert state(home) == before
    assert set(scratch_folders(home)) <= set(others)
    wait_for_none_in(home)


SIGNALS = [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
MOMENTS = [0.1, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.2, 2.6, None]  # the last is when the program has changed files


@pytest.mark.promise("P18")
@pytest.mark.slow
@pytest.mark.parametrize("user", [None, NOBODY], ids=["as is", "a user without rights"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(len(MOMENTS) + 1), ids=[*map(str, MOMENTS), "late SIGHUP"])
def test_stoker_is_killed(home: Path, mode: str, number: int, user: int | None) -> None:
    """At ten moments, by four signals; a killed process leaves a scratch folder, which the next one removes."""
    if user is not None:
        give_to(user, home.parent)
    before, others = state(home), scratch_folders(home)
    moment, kill = [*MOMENTS, None][number], SIGNALS[number % len(SIGNALS)] if number < len(MOMENTS) else signal.SIGHUP
    if moment is None:
        process, _ = start_program(home, mode, user=user)
    else:
        process = start(home, mode, user=user)
        time.sleep(moment)
    process.send_signal(kill)
    process.communicate(timeout=60)
    wait_for_none_in(home)
    assert state(home) == before
    with Sandbox(None):  # removes what a killed process of this user has left
        pass
    assert user is not None or set(scratch_folders(home)) <= set(others)
    assert state(home) == before


@pytest.mark.promise("P18")
@pytest.mark.parametrize("mode", MODES)
def test_files_that_the_user_makes_after_a_kill_stay(home: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = start_program(home, mode)
    process.kill()
    process.communicate(timeout=60)
    wait_for_none_in(home)
    (home / "thesis.txt").write_text("a week of work")
    (home / "model.pt").write_bytes(b"trained since")
    (home / "elsewhere").mkdir()
    (home / "elsewhere" / "new").write_text("mine")
    after = state(home)
    (home.parent / "other").mkdir()
    monkeypatch.chdir(home.parent / "other")
    Path("train.py").write_text("raise SystemExit(3)")
    command = [sys.executable, "-m", "stoker", "diagnose", "--sandbox", mode, "train.py"]
    subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert state(home) == after


def test_a_scratch_folder_is_removed_only_if_it_is_stale(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "landlock")
    monkeypatch.chdir(home)
    place = home.parent / "temporary"
    names = [f"{SCRATCH}{'0' * 16}", f"{SCRATCH}mine", f"{SCRATCH}{'1' * 16}"]
    for name in names[:2]:
        (place / name).mkdir()
        (place / name / "link").symlink_to(home)
    (place / names[2]).symlink_to(home)
    before = state(home)
    with Sandbox(None) as first, Sandbox(None):
        assert first._scratch is not None
        assert first._scratch.is_dir(), "the first one is in use"
    assert sorted(path.name for path in place.iterdir()) == [names[2], names[1]]
    assert state(home) == before


def test_a_diagnosis_that_starts_does_not_remove_the_folder_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start comes right after the folder is made, before it is held, and again when it is held."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made: list[Path] = []
    original = _disk.disk.mkdir

    def make(path: Path, mode: int) -> None:
        original(path, mode)
        if path.name.startswith(SCRATCH):
            made.append(path)
            if len(made) == 1:
                sandbox._remove_leftovers()

    monkeypatch.setattr(_disk.disk, "mkdir", make)
    with Sandbox(None) as entered:
        sandbox._remove_leftovers()
        assert [path.is_dir() for path in made] == [False, True]
        assert entered._scratch == made[1]
    assert not made[1].exists()


ENTERING = """
import ctypes, os, socket, sys
from stoker.sandbox import sandbox
ours, theirs = socket.socketpair()
class Watched(socket.socket):
    def sendall(self, data, *flags):
        signal = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)  # PR_GET_PDEATHSIG
        print(signal.value)
        super().sendall(data)
sandbox.socket.socket = Watched
plan = sandbox.SandboxPlan(modes=["off"], scratch=None, rules={}, needed=[], mirrored=[], socket=theirs.detach())
ours.sendall(b".")
sandbox.enter(sandbox.msgspec.json.encode(plan).decode())
"""


def test_the_program_ends_with_its_parent_before_the_parent_knows_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", ENTERING], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == signal.SIGKILL


@pytest.mark.promise("P18")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=pytest.mark.slow)], ids=["as is", "a user without rights"])
def test_the_next_diagnosis_removes_the_scratch_of_one_that_was_killed(home: Path, mode: str, user: int | None) -> None:
    if user is not None:
        give_to(user, home.parent)
    temporary = home.parent / "temporary"
    process, _ = start_program(home, mode, user=user)
    process.kill()
    process.communicate(timeout=60)
    wait_for_none_in(home)
    left = [path for path in temporary.iterdir() if path.name.startswith(SCRATCH)]
    assert len(left) == 1, "negative control: a kill leaves it"
    assert any(path.name == "log.txt" for path in left[0].rglob("*"))
    (home / "train.py").write_text("raise SystemExit(3)")
    process = start(home, mode, user=user)
    process.communicate(timeout=60)
    assert [path for path in temporary.iterdir() if path.name.startswith(SCRATCH)] == []


@pytest.mark.promise("P18")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_diagnosis_that_is_asked_to_end_removes_its_scratch(home: Path, number: signal.Signals) -> None:
    process, _ = start_program(home, "landlock")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert [path.name for path in (home.parent / "temporary").iterdir() if path.name.startswith(SCRATCH)] == []


def test_negative_control_a_folder_that_no_process_holds_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = tmp_path / f"{SCRATCH}{'a' * 16}"
    left.mkdir()
    sandbox._remove_leftovers()
    assert not left.exists()
