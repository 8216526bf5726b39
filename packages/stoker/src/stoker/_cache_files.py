"""Files of caches: compiled kernels, blocks of remote stores. Any number of processes may write them at once.

    make_cache_folder, write_cache_file, keep_newest    a folder of this user alone; whole files in it
    make_sparse_file, write_into, punch_hole            files of full size, of which parts are there

A cache can be made again, so nothing is synced, and a reader checks what it reads. All changes of the disk are operations of `_disk.Disk`,
here those of its own `disk`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stoker._disk import Buffer, Disk, naming, unique, write_all

disk = Disk()
"""Not `_disk.disk`: the operations of a pack do not depend on whether its kernels are compiled already."""


def make_cache_folder(path: Path) -> None:
    """Make a folder that only this user can enter, and its parents likewise; nothing is synced."""
    if path.is_dir():
        return
    with naming(path):
        make_cache_folder(path.parent)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            disk.mkdir(path, 0o700)


@contextlib.contextmanager
def _new_cache_file(path: Path, *, needed_bytes: int = 0) -> Iterator[int]:
    """A file that replaces the one of this name at the end of the block, whatever other processes do. Not synced."""
    temporary = unique(path)
    with naming(path, needed_bytes=needed_bytes):
        fd = disk.create(temporary)
        try:
            yield fd
            disk.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                disk.unlink(temporary)
            raise
        finally:
            os.close(fd)


def write_cache_file(path: Path, data: bytes) -> None:
    """Replace a file in one step, from any number of processes at once. Not synced, so a reader must check its content."""
    with _new_cache_file(path, needed_bytes=len(data)) as fd:
        write_all(lambda rest, _: disk.write(fd, rest), memoryview(data))


def make_sparse_file(path: Path, header: bytes, num_bytes: int) -> None:
    """Make a file of a cache that has its final size and header, and otherwise holes. An older one of the name is replaced."""
    with _new_cache_file(path) as fd:
        disk.truncate(fd, num_bytes)
        disk.pwrite(fd, header, 0)


def keep_newest(folder: Path, prefix: str, number: int) -> None:
    """Remove all but the newest files of a cache whose names begin with `prefix`; other processes may do the same."""
    with naming(folder), contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.glob(f"{prefix}*"), key=lambda path: path.stat().st_mtime_ns)[:-number]:
            disk.unlink(path)


def write_into(path: Path, fd: int, data: Buffer, offset: int) -> None:
    """Write all of `data` into an open file of a cache."""
    view = memoryview(data).cast("B")
    with naming(path, needed_bytes=view.nbytes):
        write_all(lambda rest, done: disk.pwrite(fd, rest, offset + done), view)


def punch_hole(path: Path, fd: int, offset: int, num_bytes: int) -> None:
    """Give the space of a range of a cache file back to the disk."""
    with naming(path):
        disk.punch(fd, offset, num_bytes)
