"""Runs the idioms of file_idioms.py with and without the sandbox: `python -m tests.sandbox.idiom_runner FOLDER WAY...`.

It prints what they returned or raised in each of these ways, and whose files have changed. This process has no threads when it forks,
unlike that of the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from tests.sandbox.file_idioms import outcome
from tests.sandbox.home import make_home, state
from tests.sandbox.library_idioms import IDIOMS

from stoker.sandbox import kernel, landlock, overlay, sandbox
from stoker.sandbox.sandbox import Sandbox

NOBODY = 65534


@dataclass(frozen=True)
class Way:
    """How the idioms are run."""

    mode: str | None  # of the sandbox; None without it
    as_user: bool = False  # root becomes another user first, as overlays of root are not those of a user
    without: tuple[Any, str] | None = None  # what is taken away for a negative control


WAYS = {
    "alone": Way(None),
    "alone as a user": Way(None, as_user=True),
    "overlay": Way("overlay"),
    "overlay of a user": Way("overlay", as_user=True),
    "landlock": Way("landlock"),
    "landlock of a user": Way("landlock", as_user=True),
    "overlay that moves nothing": Way("overlay", without=(overlay, "_move_between_views")),
}


def run_all(way: Way, folder: Path) -> dict[str, Any]:
    """Run all idioms in one process: what each returned, and whose files have changed."""
    homes = {name: folder / "homes" / name for name in IDIOMS}
    for name in ("user", "temporary"):
        (folder / name).mkdir(parents=True)
    for home in homes.values():
        make_home(home)
    if way.as_user:
        for path in (folder, *folder.rglob("*")):
            mode = path.lstat().st_mode
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(mode & 0o7777)
    before = {name: state(home) for name, home in homes.items()}
    os.chdir(folder / "homes")
    os.environ.update({"HOME": str(folder / "user"), "TMPDIR": str(folder / "temporary"), sandbox.VARIABLE: way.mode or "off"})
    tempfile.tempdir = None
    try:
        result = run_in_process(homes, way)
    except Exception:
        return {"error": traceback.format_exc()}
    changed = [name for name, home in homes.items() if state(home) != before[name]]
    left = [path.name for path in (folder / "temporary").iterdir() if path.name.startswith("stoker")]
    return {"results": result, "changed": changed, "left": left}


def run_in_process(homes: dict[str, Path], way: Way) -> dict[str, str]:
    if way.as_user:  # as the one who starts the program, too
        # Shared memory needs a process of Python, which is started here: Python may be installed where that user cannot run it, and
        # then the first message to that process fails or not, depending on when it ends.
        resource_tracker.ensure_running()
        child_way = Way(way.mode, without=way.without)
        return forked(lambda: (become_user(), run_in_process(homes, child_way))[1])()
    if way.mode is None:
        return forked(lambda: run_each(homes))()
    with Sandbox(None) as box:
        ours, theirs = socket.socketpair()
        plan = box.plan(theirs.fileno())
        with ours:
            wait = forked(lambda: (ours.close(), sandbox.enter(plan), run_each(homes))[2])
            theirs.close()
            box.wait_until_entered(ours)
            return wait()


def become_user() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    ctypes.CDLL(None).prctl(kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after the start of a program


def run_each(homes: dict[str, Path]) -> dict[str, str]:
    found = {}
    for name, home in homes.items():
        os.chdir(landlock.mirrored(str(home)))
        found[name] = repr(outcome(IDIOMS[name]))
    return found


def forked(run: Callable[[], Any]) -> Callable[[], Any]:
    """Run a function in a new process; returns a function that waits for what it returns."""
    reading, writing = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            reading.close()
            writing.send(run())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    writing.close()

    def wait() -> Any:
        try:
            return reading.recv()
        finally:
            os.waitpid(child, 0)

    return wait


def main(folder: Path, ways: list[str]) -> None:
    """Run the idioms in some ways, and print the results as JSON."""
    tempfile._get_candidate_names = lambda: iter(f"{number:08}" for number in range(100))  # the same each time
    found = {}
    for number, name in enumerate(ways):
        way = WAYS[name]
        if way.without is not None:
            original = getattr(*way.without)
            setattr(*way.without, lambda *given, **named: None)
        found[name] = run_all(way, folder / str(number))
        if way.without is not None:
            setattr(*way.without, original)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
