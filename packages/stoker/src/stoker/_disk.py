"""Disk access: every byte that Stoker keeps goes through this module.

    write_file, AppendFile, LogFile    write files
    make_folder, claim_folder, scratch_folder, remove_folder
    Lock, is_locked                    one writer per folder
    check_path, open_plain             check paths and files of users

Files of caches are written by _cache_files.py, with the operations of `Disk`; files of a sandbox by sandbox/files.py.

A reader sees the old state or the new one, never a part: a file is written under a temporary name, synced, renamed, and its folder
is synced; a file with its final name is never written to again. The one exception is a log, which grows line by line under its
name; its last line may be torn.

All operations that change a disk are methods of `Disk`. Tests replace `disk` by one that fails, kills or records
(`tests.harness.FaultyFiles`), so crashes are tested without a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from stoker.errors import DiskError, DiskFullError, OptionError, StokerError, StoreLockedError, shorten

Buffer = bytes | bytearray | memoryview

SCRATCH_MARK = ".stoker-scratch"
"""The file that says that Stoker made a folder of intermediate results."""
# One slash is enough, as that is what Path leaves of two.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Disk:
    """The operations that change a disk, one system call each."""

    def create(self, path: Path) -> int:
        """Make a new file and open it; an existing name is an error."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def open_again(self, path: Path) -> int:
        """Open a file of an earlier process to resume it."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, fd: int, data: Buffer) -> int:
        """Append at the file's position; may write less than all."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        """Write at an offset; may write less than all."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, num_bytes: int) -> None:
        """Cut a file to a length."""
        os.ftruncate(fd, num_bytes)

    def punch(self, fd: int, offset: int, num_bytes: int) -> None:
        """Give the space of a range back; the file keeps its size, and the range reads as zeros."""
        # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        if ctypes.CDLL(None, use_errno=True).fallocate(fd, 1 | 2, ctypes.c_long(offset), ctypes.c_long(num_bytes)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def publish(self, fd: int) -> None:
        """Make a file read-only, as it will never change again."""
        # From the mode it was created with, so that the umask of the process applies.
        os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & 0o444)

    def sync(self, fd: int) -> None:
        """Return only when the file's bytes would survive a power loss."""
        os.fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Rename within one file system; an existing target is replaced in one step."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a folder."""
        os.mkdir(path, mode)

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def sync_folder(self, path: Path) -> None:
        """Return only when the names in a folder would survive a power loss."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


disk = Disk()


@contextlib.contextmanager
def naming(path: Path, *, needed_bytes: int = 0) -> Iterator[None]:
    """Turn an `OSError` of the block into a `DiskError` that names the path, or `DiskFullError` with the bytes."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(error.errno, f"{path}: {_what_is_full(path, error.errno, needed_bytes)}") from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        name = errno.errorcode.get(error.errno or 0, "unknown")
        raise DiskError(error.errno, f"{path}: {reason} ({name}).") from error


def _what_is_full(path: Path, code: int, needed_bytes: int) -> str:
    """Which limit was reached: the system reports "no space" for bytes, inodes and quotas."""
    free, is_out_of_inodes = free_bytes(path), False
    if code == errno.EDQUOT:
        limit = f"the disk quota of this user is used up, in bytes or in files (the disk itself has {free:,} bytes free)"
        return f"{limit}. Remove files of this user, or have the quota raised, and run again."
    with contextlib.suppress(OSError):
        status = os.statvfs(_existing(path))
        is_out_of_inodes = status.f_files > 0 and status.f_favail == 0  # file systems that make inodes as they go have 0 of 0
    if free > needed_bytes and is_out_of_inodes:
        limit = f"the disk has no inodes left, so no file can be made on it although {free:,} bytes are free"
        return f"{limit}. Remove files (of any size) and run again."
    needed = f"{needed_bytes:,} bytes needed, {free:,} free" if needed_bytes else f"{free:,} bytes free"
    return f"the disk is full: {needed}. Free some space and run again."


def free_bytes(path: Path) -> int:
    """Space left on the disk that holds a path; 0 where that is unknown."""
    try:
        return shutil.disk_usage(_existing(path)).free
    except OSError:
        return 0


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((parent for parent in (path, *path.absolute().parents) if parent.exists()), Path.cwd())


def check_path(given: str | os.PathLike[str]) -> Path:
    """Return the path; raises `OptionError` if it cannot be one.

    It is empty, too long, a URL, a link to itself, within a file, or has characters that no name can have.
    """
    text = os.fsdecode(given)
    if not text:
        raise OptionError("a path is empty. Give the name of a file or a folder ('.' for the current folder).", parameter="path")
    if "\0" in text:
        raise OptionError(f"the path {text!r} has a NUL character, which no file name can have. Remove it.", path=text)
    try:
        os.stat(text)
    except UnicodeEncodeError:
        raise OptionError(f"the path {text!r} has a character that no file name can have. Remove it.", path=text) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OptionError(f"{text} is a link that leads back to itself. Remove it, or give another path.", path=text) from None
        if error.errno == errno.ENAMETOOLONG:
            raise OptionError(
                f"the path {shorten(text, 120)!r} has a name that is too long. Give a shorter one.", path=text
            ) from None
        if error.errno == errno.ENOTDIR:
            above = _existing(Path(text))
            raise OptionError(f"{text} cannot be in {above}, which is a file. Give another path.", path=text) from None
    if _URL.match(text):
        scheme = text.partition(":")[0]
        what = "Give the path without 'file://'" if scheme == "file" else "Copy the data to this machine first, or mount it"
        raise OptionError(f"{text} is a URL, but only paths on this machine are supported. {what}.", path=text)
    return Path(given)


class AppendFile:
    """A file that grows under a temporary name until `publish` gives it its final one.

    `num_bytes` counts what was appended; after a failed write the file may be longer, never shorter.
    """

    def __init__(self, path: Path, fd: int, num_bytes: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self._fd = fd

    @classmethod
    def create(cls, path: Path) -> Self:
        """Start an empty file."""
        with naming(path):
            return cls(path, disk.create(path), 0)

    @classmethod
    def reopen(cls, path: Path, num_bytes: int) -> Self:
        """Resume a file of an earlier process, cut to what that process is known to have written."""
        with naming(path):
            file = cls(path, disk.open_again(path), num_bytes)
        try:
            file.cut()
        except BaseException:
            file.close()
            raise
        return file

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end."""
        view = memoryview(data).cast("B")
        with naming(self.path, needed_bytes=view.nbytes):
            write_all(lambda rest, _: disk.write(self._fd, rest), view)
        self.num_bytes += view.nbytes

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data` over what is there (the header, once its numbers are known)."""
        view = memoryview(data).cast("B")
        with naming(self.path, needed_bytes=view.nbytes):
            write_all(lambda rest, done: disk.pwrite(self._fd, rest, offset + done), view)

    def cut(self) -> None:
        """Remove what a failed write left beyond `num_bytes`."""
        with naming(self.path):
            disk.truncate(self._fd, self.num_bytes)
            os.lseek(self._fd, self.num_bytes, os.SEEK_SET)

    def sync(self) -> None:
        """Return only when what was appended would survive a power loss."""
        with naming(self.path, needed_bytes=self.num_bytes):
            disk.sync(self._fd)

    def start_writeback(self, offset: int, num_bytes: int) -> None:
        """Ask the kernel to begin writing a range to the disk, so that `publish` has less to wait for."""
        # On dirty pages DONTNEED only starts the write; it drops nothing that is not yet on the disk.
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def publish(self, target: Path) -> None:
        """Sync, rename to the final name and make read-only. The commit syncs the folder."""
        with naming(self.path, needed_bytes=self.num_bytes):
            disk.sync(self._fd)
            disk.replace(self.path, target)
            # Last: a growing file that a killed process left read-only could not be resumed.
            disk.publish(self._fd)
            self.close()

    def close(self) -> None:
        """Close the descriptor; the temporary file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A pack that fails while it creates its files has no list of them.
        self.close()


class LogFile:
    """A file of lines that grows under its final name. A killed process leaves every whole line, and at most one torn.

    Opening removes a torn last line, and everything from the first line on that `keep` rejects.
    """

    def __init__(self, path: Path, *, keep: Callable[[bytes], bool] = lambda line: True) -> None:
        self.path = path
        if path.exists():
            if not path.is_file():  # opening a FIFO would wait for a writer
                raise DiskError(f"{path} is not a plain file. Remove it, or use another folder.", path=path)
            with naming(path), path.open("rb") as lines:
                whole = itertools.takewhile(lambda line: line.endswith(b"\n") and keep(line), lines)
                self._file = AppendFile.reopen(path, sum(map(len, whole)))
        else:
            self._file = AppendFile.create(path)
            with naming(path):
                disk.sync_folder(path.parent)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Add one line, given with its newline. After an error the file ends with the line before it."""
        if self._torn:
            self._file.cut()
        self._torn = True
        self._file.append(line)
        self._torn = False

    def sync(self) -> None:
        """Return only when all lines would survive a power loss."""
        self._file.sync()

    def close(self) -> None:
        """Close the descriptor; a line that an error tore is removed."""
        if self._torn:
            with contextlib.suppress(DiskError):  # the next process that opens it will do so
                self._file.cut()
        self._file.close()


def write_all(write: Callable[[memoryview, int], int], view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        count = write(view[done:], done)
        if count <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        done += count


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a whole file in one step; with `durable` it survives a power loss once this returns."""
    check_path(path)
    temporary = path.with_name(path.name + ".tmp")
    remove_file(temporary)
    file = AppendFile.create(temporary)
    try:
        file.append(data)
        with naming(path):
            if durable:
                file.publish(path)
                disk.sync_folder(path.parent)
            else:
                file.close()
                disk.replace(temporary, path)
    except BaseException:
        file.close()
        with contextlib.suppress(DiskError):  # the first error is the one to report
            remove_file(temporary)
        raise


def check_writable(path: Path) -> None:
    """Raise the `DiskError` of `write_file` where a folder has no right to be written to, or a name is too long. Changes nothing."""
    with naming(path):
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with contextlib.suppress(FileNotFoundError):
            os.lstat(path.with_name(path.name + ".tmp"))


def unique(path: Path) -> Path:
    """A temporary name beside a path, which no other process uses."""
    return path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def npy_bytes(arrays: Any) -> bytes:
    """An array as the bytes of a `.npy` file, or arrays by name as those of a `.npz` file."""
    import numpy as np

    sink = io.BytesIO()
    if isinstance(arrays, Mapping):
        np.savez(sink, **arrays)
    else:
        np.save(sink, arrays, allow_pickle=False)
    return sink.getvalue()


def copy_file(source: BinaryIO, path: Path) -> None:
    """Copy the unread rest of an open file into a new one. Nothing is synced."""
    with contextlib.closing(AppendFile.create(path)) as file:
        while True:
            hole, size = _next_part(source)
            if hole:
                file.num_bytes += hole
                file.cut()
                source.seek(hole, os.SEEK_CUR)
            if not (chunk := source.read(min(size, 1 << 20))):
                return
            file.append(chunk)


def _next_part(file: BinaryIO) -> tuple[int, int]:
    """The size of the hole at the current position of a sparse file, and of the data after it. A pipe has no holes."""
    try:
        here, descriptor = file.tell(), file.fileno()
        raw = os.lseek(descriptor, 0, os.SEEK_CUR)  # ahead of `here`, as reads are buffered
    except OSError:
        return 0, sys.maxsize
    try:
        data = os.lseek(descriptor, here, os.SEEK_DATA)
        return data - here, os.lseek(descriptor, data, os.SEEK_HOLE) - data
    except OSError as error:
        end = os.fstat(descriptor).st_size
        return (max(0, end - here), sys.maxsize) if error.errno == errno.ENXIO else (0, sys.maxsize)
    finally:
        os.lseek(descriptor, raw, os.SEEK_SET)


def open_lock(path: Path) -> int:
    """Open a file for locks, which is made if it does not exist."""
    with naming(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def make_folder(path: Path) -> bool:
    """Make a folder and its parents; True if it is new."""
    if check_path(path).is_dir():
        return False
    with naming(path):
        make_folder(path.parent)
        try:
            disk.mkdir(path)
        except FileExistsError:
            if path.is_dir():
                return False  # another process was quicker
            raise
        disk.sync_folder(path.parent)
    return True


def is_own_folder(path: Path, *, marker: str, sign: bytes) -> bool:
    """Whether Stoker made a folder: its file `marker` has `sign` among its first bytes."""
    try:
        fd = open_plain(path / marker, OptionError)
    except FileNotFoundError:
        return False
    with os.fdopen(fd, "rb") as file:
        return sign in file.read(256)


def claim_folder(path: Path, *, marker: str, sign: bytes, advice: str) -> None:
    """Make a folder, or use one that is empty or that Stoker made, for files that are written and removed later.

    The file `marker` is written first, so a killed run can use its folder again, and a folder of the user is never taken for one of
    Stoker. Raises `OptionError` with `advice` where the folder is not empty and has no marker.
    """
    if path.exists() and not path.is_dir():
        raise OptionError(f"{path} is a file; expected a folder, or a name that is free. {advice}", path=path)
    make_folder(path)
    if is_own_folder(path, marker=marker, sign=sign):
        return
    with naming(path):
        foreign = sorted({entry.name for entry in path.iterdir()} - {".lock", f"{marker}.tmp"})
    if foreign:
        raise OptionError(
            f"{path} was not made by Stoker: it holds {foreign[0]!r}, and no {marker}. Nothing was changed. {advice}", path=path
        )
    write_file(path / marker, b"{" + sign + b"}\n")


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.lstat(path)
        with naming(path):
            disk.unlink(path)


@contextlib.contextmanager
def removing_unless(made: Path, *paths: Path) -> Iterator[None]:
    """Remove files if the block fails before it has made another; an interrupt is not a failure."""
    try:
        yield
    except Exception:
        for path in paths if not made.exists() else ():
            remove_file(path)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it; links are removed, not followed."""
    if not path.is_dir() or path.is_symlink():
        remove_file(path)
        return
    for entry in sorted(path.iterdir()):
        remove_folder(entry)
    with naming(path):
        disk.rmdir(path)


def beside(path: Path, form: str) -> Path:
    """A path in the same folder; `form` is its name, with {} for the name of `path`."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.with_name(form.format(named.name))


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A folder for intermediate results, removed with all in it at the end of the block.

    It is marked as made by Stoker; a folder of that name without the mark is refused. After a kill or Ctrl-C it stays, and the next
    block continues with its content.
    """
    mark = path / SCRATCH_MARK
    if os.path.lexists(path) and not mark.is_file():
        raise OptionError(f"{path} is needed for intermediate results, but Stoker did not make it. Move it away.", path=path)
    absent = [parent for parent in path.parents if not parent.exists()]

    def clean(kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            remove_scratch(path)
        elif isinstance(error, Exception):
            with contextlib.suppress(OSError):  # the first error is the one to report
                remove_scratch(path)
                for parent in absent:
                    disk.rmdir(parent)  # unless something else is in it by now

    with contextlib.ExitStack() as stack:
        stack.push(clean)
        make_folder(path)
        if not mark.is_file():
            write_file(mark, b"intermediate results of Stoker; may be removed when no stoker runs\n")
        yield path


def remove_scratch(path: Path) -> None:
    """Remove a marked folder, its mark last, so that the rest is still recognised after a kill."""
    for entry in sorted(path.iterdir()) if path.is_dir() else ():
        if entry.name != SCRATCH_MARK:
            remove_folder(entry)
    remove_folder(path)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of the system for temporary files, removed with all in it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        yield Path(folder)


def open_plain(path: Path, refusal: type[StokerError]) -> int:
    """Open a file for reading; a link, a device or a folder raises `refusal`."""
    # NONBLOCK: opening a FIFO must not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(f"{path} cannot be opened as a plain file ({os.strerror(error.errno or 0)}).") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refusal(f"{path} is not a plain file.")
    return fd


def is_locked(folder: Path) -> bool:
    """Whether a process holds the `Lock` of a folder now."""
    try:
        fd = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class Lock:
    """The right to write a folder: an `flock`, which the kernel releases when the process ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._fd = -1

    def __enter__(self) -> Self:
        with naming(self.path, needed_bytes=32):
            while self._fd < 0:
                self._fd = self._try()
            try:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, str(os.getpid()).encode(), 0)
            except BaseException:
                with contextlib.suppress(OSError):  # where the disk is full, leave no empty file
                    os.unlink(self.path)
                self.__exit__()
                raise
        return self

    def _try(self) -> int:
        """Lock the file and return its descriptor, or -1 if the file was removed in between (then try again)."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.lstat(self.path)):
                return fd
        except BlockingIOError:
            holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StoreLockedError(
                f"{self.path.parent} is being written by process {holder}. Wait for it to end, or pack to another folder."
            ) from None
        except FileNotFoundError:
            pass
        os.close(fd)
        return -1

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)
        self._fd = -1
