"""The ways in which programs use files, to be compared with and without the sandbox.

An idiom is a function that is run in a fresh folder with the same files each time; idiom_runner.py does it.
"""

# The ways in which people use files.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH105, PTH107, PTH108, PTH112, PTH115, PTH116, PTH118
# ruff: noqa: PTH121, PTH123, PTH202, PTH204, PTH208, PTH211
from __future__ import annotations

import bz2
import contextlib
import errno
import fcntl
import glob
import gzip
import lzma
import mmap
import os
import shutil
import sqlite3
import stat
import subprocess
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from logging.handlers import RotatingFileHandler
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

Idiom = Callable[[], Any]
IDIOMS: dict[str, Idiom] = {}


def idiom(function: Idiom) -> Idiom:
    IDIOMS[function.__name__] = function
    return function


def outcome(run: Idiom) -> Any:
    """What it returns, or how it fails."""
    try:
        return run()
    except OSError as error:
        return type(error).__name__, errno.errorcode.get(error.errno or 0), error.filename, error.filename2
    except Exception as error:
        return type(error).__name__, str(error)


def refused(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """How a call fails."""
    return outcome(lambda: (function(*arguments, **named), "no error")[1])


def tree(folder: str = ".") -> list[str]:
    """All names in a folder, as the program sees them."""
    return sorted(os.path.join(where, name) for where, folders, names in os.walk(folder) for name in [*folders, *names])


# ---- temporary files ----


@idiom
def unnamed_file_by_flag() -> Any:
    descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(descriptor, b"abc")
    with opened_folder() as folder:
        os.link(f"/proc/self/fd/{descriptor}", "named", src_dir_fd=folder, follow_symlinks=True)
    without = refused(os.link, "/proc/self/fd/1", "other")
    os.close(descriptor)
    return Path("named").read_bytes(), without, tree()


@idiom
def temporary_file_into_place() -> Any:
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        file.write(b"new")
    os.replace(file.name, "model.pt")
    return Path("model.pt").read_bytes(), tree()


@idiom
def low_temporary_file_into_place() -> Any:
    descriptor, name = tempfile.mkstemp(dir="run")
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"new")
    os.chmod(name, 0o640)
    shutil.move(name, "run/last.pt")
    return Path("run/last.pt").read_bytes(), stat.S_IMODE(os.stat("run/last.pt").st_mode), tree()


@idiom
def temporary_file_into_a_new_folder() -> Any:
    """As fsspec commits, and so Lightning."""
    os.makedirs("runs/checkpoints")
    names = []
    for number in range(2):
        descriptor, name = tempfile.mkstemp(dir=os.environ["TMPDIR"])
        os.write(descriptor, b"new")
        os.close(descriptor)
        names.append(name)
        shutil.move(name, f"runs/checkpoints/{number}.ckpt") if number else os.link(name, f"runs/checkpoints/{number}.ckpt")
    os.remove(names[0])
    return Path("runs/checkpoints/1.ckpt").read_bytes(), Path("runs/checkpoints/0.ckpt").read_bytes(), tree()


# ---- folders that are open ----


@contextlib.contextmanager
def opened_folder(path: str = ".") -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@idiom
def relative_to_an_open_folder() -> Any:
    with opened_folder("run") as folder:
        descriptor = os.open("last.pt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
        os.write(descriptor, b"new")
        os.close(descriptor)
        os.mkdir("sub", dir_fd=folder)
        os.rename("last.pt", "sub/moved.pt", src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink("deep/best.pt", dir_fd=folder)
        size = os.stat("sub/moved.pt", dir_fd=folder).st_size
        missing = refused(os.stat, "last.pt", dir_fd=folder), refused(os.unlink, "last.pt", dir_fd=folder)
        return size, missing, os.access("sub/moved.pt", os.R_OK, dir_fd=folder), tree()


# ---- moving and removing ----


@idiom
def renames_that_fail() -> Any:
    Path("new").write_text("abc")
    return [
        refused(os.rename, "nothing", "b"),
        refused(os.rename, "log.txt", "run"),
        refused(os.rename, "run", "run/deep/in"),
        refused(os.rename, "empty", "run"),
        refused(os.rename, "log.txt", "log.txt"),
        tree(),
    ]


@idiom
def folder_of_checkpoints_rotates() -> Any:
    os.rename("run", "run.old")
    os.makedirs("run")
    Path("run/last.pt").write_bytes(b"newer")
    with open("run.old/last.pt", "ab") as file:
        file.write(b" and more")
    texts = [Path(name).read_bytes() for name in ("run/last.pt", "run.old/last.pt", "run.old/deep/best.pt")]
    before = tree()
    shutil.rmtree("run.old")
    return texts, before, tree()


@idiom
def new_folder_into_place() -> Any:
    os.makedirs("run.tmp/x")
    Path("run.tmp/x/last.pt").write_bytes(b"newer")
    failed = refused(os.replace, "run.tmp", "run")
    shutil.rmtree("run")
    os.replace("run.tmp", "run")
    os.rename("run", "empty")
    return failed, Path("empty/x/last.pt").read_bytes(), tree()


@idiom
def files_change_places() -> Any:
    os.rename("model.pt", "model.bak")
    os.rename("log.txt", "model.pt")
    os.rename("model.bak", "log.txt")
    shutil.copy2("log.txt", "copy.txt")
    shutil.move("copy.txt", "run")
    return Path("model.pt").read_bytes(), Path("log.txt").read_bytes(), Path("run/copy.txt").read_bytes(), tree()


@idiom
def folder_in_place_of_a_file() -> Any:
    os.remove("log.txt")
    os.mkdir("log.txt")
    Path("log.txt/a").write_text("abc")
    shutil.rmtree("empty")
    Path("empty").write_text("a file now")
    return Path("log.txt/a").read_text(), os.path.isdir("log.txt"), Path("empty").read_text()


@idiom
def emptied_and_filled_again() -> Any:
    for turn in range(3):
        shutil.rmtree("run", ignore_errors=True)
        os.makedirs("run/deep")
        Path("run/deep/best.pt").write_text(str(turn))
    return Path("run/deep/best.pt").read_text(), tree("run"), glob.glob("run/**/*.pt", recursive=True)


@idiom
def low_flags() -> Any:
    descriptor = os.open("log.txt", os.O_RDWR | os.O_APPEND)
    os.write(descriptor, b"three")
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, 100)
    os.close(descriptor)
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o640))
    os.truncate("model.pt", 3)
    return text, Path("model.pt").read_bytes(), stat.S_IMODE(os.stat("made").st_mode), tree()


@idiom
def packers() -> Any:
    for module, name in ((gzip, "a.gz"), (bz2, "a.bz2"), (lzma, "a.xz")):
        with module.open(name, "wb") as file:
            file.write(b"abc")
    with tarfile.open("a.tar", "w") as tar:
        tar.add("log.txt")
    with zipfile.ZipFile("a.zip", "w") as packed:
        packed.write("model.pt")
    shutil.make_archive("all", "zip", "run")
    with tarfile.open("a.tar") as tar:
        tar.extractall("out", filter="data")
    with gzip.open("a.gz") as one, bz2.open("a.bz2") as two, lzma.open("a.xz") as three, zipfile.ZipFile("all.zip") as packed:
        return one.read(), two.read(), three.read(), packed.namelist(), tree()


@idiom
def numpy_files() -> Any:
    np.save("a.npy", np.arange(4))
    np.savez("a.npz", x=np.arange(3))
    mapped = np.lib.format.open_memmap("b.npy", mode="w+", dtype=np.int64, shape=(4,))
    mapped[:] = 7
    mapped.flush()
    raw = np.memmap("c.bin", dtype=np.int32, mode="w+", shape=(2,))
    raw[:] = 1
    raw.flush()
    np.arange(3).tofile("d.bin")
    read = np.load("a.npy", mmap_mode="r+")
    read[0] = 5
    read.flush()
    return [np.load("a.npy").tolist(), np.load("b.npy", mmap_mode="r").tolist(), np.fromfile("d.bin", np.int64).tolist(), tree()]


@idiom
def torch_files() -> Any:
    torch.save({"a": torch.ones(2)}, "model.pt")
    torch.save(torch.ones(1), Path("run/last.pt"))
    safetensors.torch.save_file({"a": torch.ones(2)}, "w.safetensors")
    with safetensors.safe_open("w.safetensors", framework="pt") as file:
        names = list(file.keys())
    weights = safetensors.torch.load_file("w.safetensors")["a"].tolist()
    mapped = torch.load("model.pt", mmap=True)["a"].tolist()
    return mapped, torch.load("run/last.pt").tolist(), weights, names, tree()


@idiom
def mapped_file() -> Any:
    with open("model.pt", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:4] = b"MINE"
        mapped.flush()
    return Path("model.pt").read_bytes()


@idiom
def marks() -> Any:
    Path("log.txt").touch()
    os.chmod("model.pt", 0o600)
    os.utime("model.pt", (5, 5))
    Path("touched").touch()
    shutil.copystat("log.link", "touched", follow_symlinks=False)
    return stat.S_IMODE(os.stat("model.pt").st_mode), os.path.getmtime("model.pt"), os.path.getmtime("log.txt") > 1e9, tree()


# ---- links, locks, pipes and what others share ----


@idiom
def links() -> Any:
    os.symlink("run", "newest")
    Path("newest/new.pt").write_text("abc")
    os.symlink("nothing", "dangling")
    Path("dangling").write_text("through a link")
    tmp = Path("latest.tmp")
    tmp.symlink_to("empty")
    os.replace(tmp, "latest")
    os.symlink("log.txt", "to-log")
    with open("to-log", "a") as file:
        file.write("three")
    return [
        os.readlink("newest"),
        os.readlink("latest"),
        Path("run/new.pt").read_text(),
        Path("nothing").read_text(),
        Path("log.txt").read_text(),
        os.listdir("latest"),
        sorted(os.listdir("newest")),
        refused(os.symlink, "a", "model.pt"),
        tree(),
    ]


@idiom
def hard_links() -> Any:
    os.link("model.pt", "backup.pt")
    Path("new").write_text("abc")
    os.link("new", "new-2")
    with open("new", "a") as file:
        file.write("def")
    same = os.path.samefile("new", "new-2"), os.stat("new").st_nlink, os.stat("model.pt").st_nlink
    os.remove("new")
    return same, Path("new-2").read_text(), Path("backup.pt").read_bytes(), refused(os.link, "nothing", "x"), tree()


@idiom
def locks() -> Any:
    descriptor = os.open("a.lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = os.open("a.lock", os.O_RDWR)
    held = refused(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    links = os.fstat(descriptor).st_nlink
    os.close(descriptor)
    os.unlink("a.lock")
    os.close(os.open("b.lock", os.O_CREAT | os.O_EXCL))
    taken = refused(os.open, "b.lock", os.O_CREAT | os.O_EXCL)
    os.remove("b.lock")
    return held, links, taken, tree()


def fill(name: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(name)) as base:
        base.execute("create table losses (step, loss)")
        base.execute("insert into losses values (1, 0.5)")
        base.commit()
        return base.execute("select * from losses").fetchall()


@idiom
def databases() -> Any:
    os.remove("log.txt")  # an old one of this name
    rows = [fill("log.txt"), fill("run/new.db"), fill(":memory:")]
    again = outcome(lambda: fill("run/new.db"))
    with contextlib.closing(sqlite3.connect(Path("run/new.db"))) as base:
        rows.append(base.execute("select count(*) from losses").fetchall())
    os.rename("run/new.db", "newer.db")
    return rows, again, os.path.getsize("newer.db") > 0, tree()


@idiom
def pipe() -> Any:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text("abc"))
    writer.start()
    text = Path("pipe").read_text()
    writer.join()
    os.remove("pipe")
    return text, tree()


@idiom
def memory_that_is_shared() -> Any:
    block = shared_memory.SharedMemory(create=True, size=16)
    block.buf[:3] = b"abc"
    text = bytes(block.buf[:3])
    block.close()
    block.unlink()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"abc")
        file.flush()
        shutil.copy(file.name, "copied")
    return text, Path("copied").read_bytes()


@idiom
def logs_that_rotate() -> Any:
    handler = RotatingFileHandler("log.txt", maxBytes=10, backupCount=2)
    for number in range(5):
        handler.emit(__import__("logging").makeLogRecord({"msg": f"line {number}"}))
    handler.close()
    return {name: Path(name).read_text() for name in sorted(glob.glob("log.txt*"))}


@idiom
def trees_of_files() -> Any:
    shutil.copytree("run", "copy")
    shutil.copytree("run", "links", symlinks=True, dirs_exist_ok=True)
    os.renames("copy/deep/best.pt", "other/place/best.pt")
    found = sorted((entry.name, entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in os.scandir("."))
    return found, tree(), sorted(map(str, Path().rglob("*.pt"))), shutil.disk_usage("other").total > 0


@idiom
def threads_that_write() -> Any:
    def write(number: int) -> None:
        for turn in range(20):
            with open(f"{number}.tmp", "w") as file:
                file.write(str(turn))
            os.replace(f"{number}.tmp", f"{number}.txt")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [Path(f"{number}.txt").read_text() for number in range(4)], tree()


@idiom
def worker_that_is_forked() -> Any:
    Path("before.txt").write_text("abc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child only uses files
        child = os.fork()
    if child == 0:
        try:
            ok = Path("before.txt").read_text() == "abc"
            Path("log.txt").write_text("of the worker")
            Path("own.txt").write_text("of the worker")
            os._exit(0 if ok and Path("log.txt").read_text() == "of the worker" else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1]


@idiom
def folders_that_others_see() -> Any:
    os.makedirs("out/parts")
    subprocess.run(["sh", "-c", "printf abc > out/parts/a.txt"], check=True)
    text = Path("out/parts/a.txt").read_text()
    os.rename("out/parts/a.txt", "out/b.txt")
    shutil.rmtree("out/parts")
    inside = tree("out")
    shutil.rmtree("out")
    return text, inside, tree()
