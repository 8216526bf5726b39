"""Ways to read a file that is held out: `python -m tests.sandbox.reading_attacks FOLDER MODE USER` tries them all in the sandbox.

It prints for each what it read, or why it could not. This process has no threads when it forks, unlike that of the tests.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.sandbox.idiom_runner import become_user, forked

from stoker.sandbox import overlay, sandbox
from stoker.sandbox.sandbox import Sandbox

SECRET = b"the secret rows"
Attack = Callable[[Path], bytes]


def by_map(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return bytes(data)


def by_link(path: Path, kind: Callable[[Path, str], None]) -> bytes:
    name = f"made_by_{kind.__name__}.bin"
    kind(path, name)
    return Path(name).read_bytes()


def by_descriptor(path: Path) -> bytes:
    handle = os.open(path, os.O_PATH)
    return Path(f"/proc/self/fd/{handle}").read_bytes()


def by_folder_descriptor(path: Path) -> bytes:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    return os.read(os.open(path.name, os.O_RDONLY, dir_fd=folder), 100)


def by_rename(path: Path) -> bytes:
    return path.rename("renamed.bin").read_bytes()


def by_folder_rename(path: Path) -> bytes:
    return (path.parent.rename("elsewhere") / path.name).read_bytes()


def by_shell(command: str) -> Attack:
    def run(path: Path) -> bytes:
        done = subprocess.run(["sh", "-c", command.format(path)], capture_output=True, timeout=20, check=False)
        if SECRET not in done.stdout:
            raise OSError(done.stderr.decode(errors="replace")[-80:])
        return done.stdout

    return run


def by_unmount(path: Path) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    for place in (path, path.parent, Path.cwd()):
        libc.umount2(os.fsencode(place), 2)
    return path.read_bytes()


def by_other_process(path: Path) -> bytes:
    """By the root folder of a process outside the sandbox."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                return Path(f"{process}/root{path}").read_bytes()
            except OSError as error:
                last = error
    raise last


def by_namespace(path: Path) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("1", os.environ["OUTSIDE"]):
        handle = os.open(f"/proc/{name}/ns/mnt", os.O_RDONLY)
        if libc.setns(handle, 0) == 0:
            return path.read_bytes()
    raise OSError(ctypes.get_errno(), "setns")


def by_handle(path: Path) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132))
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path.parent), handle, ctypes.byref(mount), 0) < 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    folder = libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, os.O_RDONLY)
    if folder < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return os.read(os.open(path.name, os.O_RDONLY, dir_fd=folder), 100)


def by_disk(path: Path) -> bytes:
    """By the block device itself: reading anything of it is enough."""
    last = OSError("there is no disk")
    for device in Path("/dev").iterdir():
        try:
            if device.is_block_device() and device.open("rb", buffering=0).read(16):
                return SECRET
        except OSError as error:
            last = error
    raise last


ATTACKS: dict[str, Attack] = {
    "read": Path.read_bytes,
    "copy": lambda path: Path(shutil.copy(path, "copied.bin")).read_bytes(),
    "map": by_map,
    "symbolic link": lambda path: by_link(path, os.symlink),
    "symbolic link that was there": lambda path: Path("link.bin").read_bytes(),
    "link to the folder": lambda path: Path("folder_link", path.name).read_bytes(),
    "hard link": lambda path: by_link(path, os.link),
    "descriptor": by_descriptor,
    "folder's descriptor": by_folder_descriptor,
    "another process": by_shell("cat {}"),
    "a copy by another process": by_shell("cp {} x.bin && cat x.bin"),
    "unmount": by_unmount,
    "unmount in a new namespace": by_shell("unshare -Urm sh -c 'umount -l {0}; umount -l $(dirname {0}); cat {0}'"),
    "the disk bound again": by_shell("unshare -Urm sh -c 'mkdir -p b && mount --bind / b && cat b{0}'"),
    "root of other processes": by_other_process,
    "namespace of other processes": by_namespace,
    "file handle": by_handle,
    "disk": by_disk,
    "folder that is held out": lambda path: Path("held", "rows.bin").read_bytes(),
    "listing of the folder that is held out": lambda path: next(Path("held").iterdir()).read_bytes(),
    "rename": by_rename,
    "rename of the folder": by_folder_rename,
}
"""The last two move what the others would read."""


def attempt(attack: Attack, path: Path) -> str:
    def run() -> str:
        signal.alarm(30)
        try:
            return "READ" if SECRET in attack(path) else "other bytes"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return str(forked(run)())


def main(folder: Path, mode: str, *, as_user: bool) -> None:
    """Make a project with held-out files and attack them."""
    project = folder / "project"
    (project / "data").mkdir(parents=True)
    (project / "held").mkdir()
    (folder / "tmp").mkdir()
    for path in (project / "data" / "valid.bin", project / "held" / "rows.bin"):
        path.write_bytes(SECRET)
    (project / "data" / "train.bin").write_bytes(b"other rows")
    (project / "link.bin").symlink_to("data/valid.bin")
    (project / "folder_link").symlink_to("data")
    if as_user:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        become_user()
    os.environ |= {"HOME": str(project), "TMPDIR": str(folder / "tmp"), sandbox.VARIABLE: mode, "OUTSIDE": str(os.getpid())}
    tempfile.tempdir = None
    os.chdir(project)
    hidden = [] if mode == "off" else [str(project / "data" / "valid.bin"), str(project / "held")]

    def inside() -> dict[str, str]:
        path = project / "data" / "valid.bin"
        results = {"what is next to it": Path("data", "train.bin").read_bytes().decode()}
        return results | {name: attempt(attack, path) for name, attack in ATTACKS.items()}

    with Sandbox(None, hidden=hidden, sealed=mode != "off") as box:
        ours, theirs = socket.socketpair()
        plan = box.plan(theirs.fileno())
        with ours:
            wait = forked(lambda: (ours.close(), sandbox.enter(plan), inside())[2])
            theirs.close()
            box.wait_until_entered(ours)
            print(json.dumps(wait()))


if __name__ == "__main__":
    overlay.end_with_parent()
    main(Path(sys.argv[1]), sys.argv[2], as_user=sys.argv[3] == "user")
