"""The overlay: a program's view of the disk in which its own files lie in a scratch folder and the user's stay as they are.

Files that the program writes have a place in the scratch folder, files of the user's that it removes are hidden, and everything else
is what is on disk. `Overlay` has the functions of `os` that take paths, by this view; `sandbox` installs them. What they do to the
disk is the program's doing, not stoker's, so it does not go through `stoker._disk`.

A program behaves as it would alone, with the same results and the same errors. So folders are made where the program wants them,
because libraries in C++ write there, too. Writes to caches, new temporary files and devices pass to the disk (`PassThrough`). A cache is
a folder that programs fill so that the next run is faster. Compilers (numba, Inductor, Triton), hubs and plotting libraries pass what
they write there to other processes and to libraries that do not know the scratch folder. Any environment variable with CACHE in its
name names one.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import site
import stat
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from stoker import _disk

IN_HOME = (".cache", ".triton", ".nv/ComputeCache", ".cupy", ".config/matplotlib")  # default caches, in the home folder
VARIABLES = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "MPLCONFIGDIR")
"""Variables that name a cache and have no CACHE in their name."""
COMPILED = "__pycache__"
INDUCTOR = "torchinductor_"  # prefix of the temporary folder of torch.compile
APART = ("/dev", "/proc", "/sys", "/run")
# Functions of the disk: those of `os` are replaced by the overlay.
_open, _access, _lstat, _stat, _scandir, _readlink = open, os.access, os.lstat, os.stat, os.scandir, os.readlink
_join, _dirname, _basename = os.path.join, os.path.dirname, os.path.basename


def cache_folders(environ: Mapping[str, str], here: str) -> set[str]:
    """The caches of this user and the folders of installed packages, links resolved."""
    # A variable that names the home folder, the current folder (`here`) or one around them is ignored: the user's files lie there.
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    named = {value for name, value in environ.items() if value and ("CACHE" in name or name in VARIABLES)}
    named |= {_join(value, "matplotlib") for name, value in environ.items() if name == "XDG_CONFIG_HOME"}
    real = {os.path.realpath(_join(here, os.path.expanduser(one))) for one in named}  # noqa: PTH111
    believed = {one for one in real if not is_below(home, one) and not is_below(here, one)}
    packages = {*(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")), site.getusersitepackages()}
    return believed | {os.path.realpath(one) for one in packages} | {_join(home, one) for one in IN_HOME}


class PassThrough:
    """Decides which names pass to the disk: the innermost known folder around a name decides."""

    def __init__(self, scratch: str) -> None:
        self.variables_changed = True  # whether an environment variable has changed, so that caches may be elsewhere
        self.made: set[str] = set()  # folders that the program made among temporary files
        self._scratch = scratch
        self.began_ns = 0  # temporary files that existed then were there before the program
        self._here = os.path.realpath(Path.cwd())
        self.temporary = os.path.realpath(os.environ.get("TMPDIR", "/tmp"))
        self._caches: set[str] = set()
        self._folders: list[str] = []  # folders that decide, the innermost first

    def passes(self, name: str, *, is_moved: bool) -> bool:
        """Whether writes to a name go to the disk; `is_moved` if the overlay has a file of this name."""
        if is_below(name, self._scratch) or any(is_below(name, one) for one in APART) or COMPILED in name.split("/"):
            return True
        folder = self.deciding(name)
        if folder is None or folder == self._here:
            return False
        if folder in self._caches or name.startswith(_join(self.temporary, INDUCTOR)):
            return True
        return name == self.temporary or not (is_moved or self._was_before(name))

    def deciding(self, name: str) -> str | None:
        """The innermost known folder around a name."""
        if self.variables_changed:
            self.variables_changed = False
            caches = cache_folders(os.environ, self._here)
            self._caches = caches - {self._here, self.temporary}
            self._folders = sorted({*caches, self.temporary, self._here}, key=len, reverse=True)
        return next((one for one in self._folders if is_below(name, one)), None)

    def _was_before(self, name: str) -> bool:
        """Whether a temporary file existed before the program."""
        if not is_there(name) or any(one in self.made for one in upwards(name)):
            return False
        # A folder changes whenever something is made in it, so its age says nothing; a file changes when it is written.
        state = _lstat(name)
        return stat.S_ISDIR(state.st_mode) or state.st_ctime_ns < self.began_ns


def is_there(name: str) -> bool:
    """Whether the disk has something of this name, whatever the overlay has."""
    try:
        _lstat(name)
    except OSError:
        return False
    return True


def is_below(name: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def upwards(name: str) -> list[str]:
    """A name and all folders above it."""
    parts = name.rstrip("/").split("/")
    return ["/".join(parts[:number]) or "/" for number in range(len(parts), 0, -1)]


class _Entry:
    """A file or folder of the view, with the methods of an `os.DirEntry`."""

    def __init__(self, name: str | bytes, path: str | bytes, full: str) -> None:
        self.name, self.path, self._full = name, path, full

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._full, follow_symlinks=follow_symlinks)  # noqa: PTH116 (that of the view)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        return False  # only Windows has them

    def _mode(self, follow_symlinks: bool) -> int:
        """Its mode; 0 if it is gone or a broken link."""
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0


class _Listing:
    """The entries of a folder, like the result of `os.scandir`, on which `glob`, `os.walk` and `pathlib` rest."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter([])


FINDING = ("stat", "access", "statvfs", "listxattr", "getxattr", "chdir")
MARKING = ("utime", "chmod", "chown", "setxattr", "removexattr", "truncate")
REPLACED = "open mkdir symlink link readlink rename unlink rmdir mkfifo mknod listdir lstat lchown".split()
_OS: dict[str, Any] = {name: getattr(os, name) for name in [*REPLACED, *FINDING, *MARKING]}  # the original functions
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
UNNAMED = getattr(os, "O_TMPFILE", 0)
MAX_LINKS = 40
MAX_NAME = 255  # bytes of a file name, on Linux; the place of a file has another name
CHANGEABLE = os.W_OK | os.X_OK


class Overlay:
    """A program's view of the disk. A *name* is a full path of the view without links; a *place* is where its file really lies."""

    def __init__(self, folder: Path) -> None:
        self.written: dict[str, None] = {}  # names that the program wrote to
        self.hidden = 0  # number of the user's files and folders that the program removed or replaced, in its view
        self.made: dict[str, None] = {}  # folders and pipes that it made on disk
        self.on_write: Callable[[], None] = lambda: None  # called when a file gets a place
        self._folder = os.path.realpath(folder)
        self.pass_through = PassThrough(self._folder)
        self._moved: dict[str, str] = {}
        """Places of files and links that the program made, by name. A place outside of the scratch folder is a file of the user's
        under another name, which is copied before it is written to."""
        self._gone: set[str] = set()  # the user's files and folders that the view does not have, unless they were made again
        self._remade: set[str] = set()  # folders of these that were made again, and are empty in the view
        self._reals: dict[str, str] = {}  # folders with links resolved, by their paths
        self._has_links = False  # whether the view may have links that are not on disk
        self._numbers = itertools.count(1)  # threads draw from it, each its own

    def begin(self) -> None:
        """Make the scratch folder."""
        _disk.make_folder(Path(self._folder))
        self.pass_through.began_ns = _lstat(self._folder).st_ctime_ns

    def name(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str | None:
        """The name of a path; None for descriptors, open files and invalid paths."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        text = os.fsdecode(path)
        if not text or "\0" in text:
            return None
        if not text.startswith("/"):
            try:
                text = _join(os.getcwd() if dir_fd is None else _readlink(f"/proc/self/fd/{dir_fd}"), text)  # noqa: PTH109
            except OSError:  # not an open folder: the system raises its own error
                return None
        if text.startswith(("/dev/", "/proc/", "/sys/")):  # where a link may lead to a file without a name
            return os.path.normpath(text)
        head, _, tail = text.rstrip("/").rpartition("/")
        if tail in (".", ".."):
            return self._real(text)
        name = f"{self._real(head).rstrip('/')}/{tail}"
        return self._followed(name) if follow or text.endswith("/") else name

    def _real(self, folder: str, links: int = 0) -> str:
        """A folder with links resolved."""
        known = self._reals.get(folder)
        if known is not None:
            return known
        head, tail = os.path.split(folder.rstrip("/"))
        if not tail:
            return "/"
        above = self._real(head, links)
        if tail in (".", ".."):
            return above if tail == "." else _dirname(above)
        name = _join(above, tail)
        real = self._followed(name, links)
        if real == name and self._is_folder(name):  # what does not exist may become a link later
            self._reals[folder] = real
        return real

    def _followed(self, name: str, links: int = 0) -> str:
        try:
            target = _readlink(self._moved.get(name, name))
        except OSError:
            return name
        if name not in self._moved and self._is_gone(name):
            return name
        if links >= MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        return self._real(_join(_dirname(name), target), links + 1)

    def _passes(self, name: str) -> bool:
        """Whether writes to a name go to the disk."""
        return self.pass_through.passes(name, is_moved=name in self._moved)

    def protects(self, path: Any) -> bool:
        """Whether writes to a path are kept from the disk."""
        name = self.name(path)
        return name is not None and not self._passes(name)

    def _is_gone(self, name: str) -> bool:
        if not self._gone or name in self._moved or name in self._remade:
            return False
        for one in upwards(name):
            if one in self.made:
                return False
            if one in self._gone:
                return True
        return False

    def _place(self, name: str) -> str | None:
        """The place of a name; None if the view has nothing of this name."""
        if name in self._moved:
            return self._moved[name]
        return name if is_there(name) and not self._is_gone(name) else None

    def _is_folder(self, name: str) -> bool:
        place = self._place(name)
        return place is not None and stat.S_ISDIR(_lstat(place).st_mode)

    def _is_own(self, name: str) -> bool:
        """Whether a name is, or lies in, a folder that the program made."""
        return any(one in self.made for one in upwards(name))

    def to_read(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """What to open in place of a path; raises if the program has removed it."""
        if not (self._moved or self._gone):
            return path
        name = self.name(path, dir_fd, follow=follow)
        if name is None:
            return path
        _refuse(self._is_gone(name), errno.ENOENT, path)
        return self._moved.get(name) or self._on_disk(path, name)

    def _on_disk(self, path: Any, name: str | None) -> Any:
        """The path of a file on disk, also if it goes through links that are not on disk."""
        return name if self._has_links and name is not None else path

    def _check_parent(self, name: str, *paths: Any) -> None:
        """Raise unless a file can be made in the folder of a name."""
        parent = _dirname(name)
        place = self._place(parent)
        if place is None:
            above = next((one for one in upwards(parent) if self._place(one) is not None), "/")
            raise _error(errno.ENOENT if self._is_folder(above) else errno.ENOTDIR, *paths)
        _refuse(not self._is_folder(parent), errno.ENOTDIR, *paths)
        _refuse(len(os.fsencode(_basename(name))) > MAX_NAME, errno.ENAMETOOLONG, *paths)
        _refuse(not _access(place, CHANGEABLE), errno.EACCES, *paths)

    def _check_free(self, name: str, *paths: Any) -> None:
        _refuse(self._place(name) is not None, errno.EEXIST, *paths)
        self._check_parent(name, *paths)

    def _new_place(self, name: str) -> str:
        self.written[name] = None
        self.on_write()
        # With the process id, because forked workers continue from the same number.
        return _join(self._folder, f"{os.getpid()}-{next(self._numbers)}{os.path.splitext(name)[1][:16]}")  # noqa: PTH122

    def _own(self, name: str, *, keep: bool = True) -> str:
        """The place of a file to write to. A file of the user's is copied; with `keep=False` without its content."""
        old = self._place(name)
        if old is not None and is_below(old, self._folder):
            return old
        place = self._new_place(name)
        if old is None:
            return self._moved.setdefault(name, place)  # another thread may have been first
        self._copy(old, place, keep=keep)
        self._moved[name] = place
        return place

    def _copy(self, old: str, place: str, *, keep: bool = True) -> None:
        with _open(old, "rb") if keep else io.BytesIO() as source:
            _disk.copy_file(source, Path(place))
        state = _stat(old)
        _OS["chmod"](place, stat.S_IMODE(state.st_mode))
        _OS["utime"](place, ns=(state.st_atime_ns, state.st_mtime_ns))

    def _vanish(self, name: str) -> None:
        """Remove a name from the view. A file in the scratch folder stays."""
        self._reals.clear()
        self._moved.pop(name, None)
        self._remade.discard(name)
        if is_there(name) and name not in self._gone:
            self._gone.add(name)
            self.hidden += 1

    def _is_hidden(self, name: str) -> bool:
        """Whether the view differs from the disk at a name, or the file on disk must not change."""
        return name in self._moved or not (self._passes(name) or self._is_own(name))

    def _to_open(self, name: str, flags: int, path: Any) -> str:
        """The place to open for writing; raises the errors that the program would have seen."""
        place = self._place(name)
        if place is None:
            _refuse(not flags & os.O_CREAT, errno.ENOENT, path)
            self._check_parent(name, path)
            _refuse(os.fsdecode(path).endswith("/"), errno.EISDIR, path)
        else:
            mode = _lstat(place).st_mode
            _refuse(flags & os.O_CREAT and flags & os.O_EXCL, errno.EEXIST, path)
            _refuse(stat.S_ISLNK(mode), errno.ELOOP, path)
            _refuse(stat.S_ISDIR(mode), errno.EISDIR, path)
            _refuse(not _access(place, os.W_OK), errno.EACCES, path)
            if not stat.S_ISREG(mode):
                return place
        return self._own(name, keep=not flags & os.O_TRUNC)

    def to_write(self, path: Any) -> Any:
        """The place of a file that is written from its start; the path itself if that is an error."""
        name = self.name(path)
        if name is None or self._passes(name):
            return path
        try:
            return self._to_open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, path)
        except OSError:
            if _is_folder(_dirname(name)) and not _is_folder(name):  # C++ would not raise the error
                raise
            return path

    def to_database(self, path: Any) -> Any:
        """The place of a database that the program creates; the path itself of an existing one, which may be large."""
        name = self.name(path) if path != ":memory:" and not os.fsdecode(path).startswith("file:") else None
        if name is None or self._passes(name) or (name not in self._moved and self._place(name) is not None):
            return path
        self._check_parent(name, path)
        return self._own(name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & WRITING or (UNNAMED and flags & UNNAMED == UNNAMED):
            place = self.to_read(path, dir_fd, follow=not flags & os.O_NOFOLLOW)
            return int(_call("open", path, place, flags, mode, dir_fd=dir_fd))
        name = self.name(path, dir_fd, follow=not flags & (os.O_EXCL | os.O_NOFOLLOW))
        if name is None or (name not in self._moved and self._passes(name) and not self._is_gone(name)):
            return int(_call("open", path, self._on_disk(path, name), flags, mode, dir_fd=dir_fd))
        return int(_call("open", path, self._to_open(name, flags, path), flags & ~os.O_EXCL, mode))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """`os.unlink` and `os.remove`."""
        name = self.name(path, dir_fd, follow=False)
        if name is None or not self._is_hidden(name):
            _call("unlink", path, self._on_disk(path, name), dir_fd=dir_fd)
            return
        place = self._place(name)
        if place is None or self._is_folder(name):
            raise _error(errno.ENOENT if place is None else errno.EISDIR, path)
        _refuse(not _access(_dirname(name), CHANGEABLE), errno.EACCES, path)
        self._vanish(name)
        if is_below(place, self._folder):
            _OS["unlink"](place)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """`os.rename` and `os.replace`."""
        name, goal = self.name(src, src_dir_fd, follow=False), self.name(dst, dst_dir_fd, follow=False)
        self._reals.clear()
        if (
            name is None
            or goal is None
            or (self._both_on_disk(name, goal) and not any(is_below(one, name) for one in [*self._moved, *self.made]))
        ):
            if self._has_links and name is not None and goal is not None:
                src, dst, src_dir_fd, dst_dir_fd = name, goal, None, None
            _OS["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if name in self.pass_through.made and goal is not None:
                self.pass_through.made.add(goal)
            return
        _refuse(self._place(name) is None, errno.ENOENT, src, dst)
        self._check_parent(goal, src, dst)
        _refuse(_stat(_dirname(name)).st_dev != _stat(_dirname(goal)).st_dev, errno.EXDEV, src, dst)
        is_folder, replaces = self._is_folder(name), name != goal and self._place(goal) is not None
        _refuse(is_folder and is_below(goal, name) and goal != name, errno.EINVAL, src, dst)
        _refuse(replaces and is_folder != self._is_folder(goal), errno.ENOTDIR if is_folder else errno.EISDIR, src, dst)
        _refuse(replaces and is_folder and self._entries(goal, goal), errno.ENOTEMPTY, src, dst)
        _refuse(not _access(_dirname(name), CHANGEABLE), errno.EACCES, src, dst)
        if name != goal:
            self._move_folder(name, goal) if is_folder else self._move_file(name, goal)

    def _both_on_disk(self, name: str, goal: str) -> bool:
        """Whether a file is renamed on disk: in caches and the like, or among what libraries wrote."""
        if name in self._moved or goal in self._moved:
            return False
        return (self._passes(name) and self._passes(goal)) or (self._is_own(name) and self._is_own(goal))

    def _move_file(self, name: str, goal: str) -> None:
        place = self._place(name)
        if place is None:  # another process has removed it meanwhile
            raise _error(errno.ENOENT, name)
        taken = self._moved.pop(goal, None)
        if taken is not None and is_below(taken, self._folder):
            _OS["unlink"](taken)
        ours = place == name and (self._passes(name) or self._is_own(name))  # on disk, made by the program or its libraries
        if self._passes(goal) or (ours and self._both_on_disk(name, goal)):  # other processes may look for it
            self._move_really(place, goal, keep=not ours and not is_below(place, self._folder))
        elif ours:
            self._moved[goal] = self._new_place(goal)
            self._move_really(place, self._moved[goal], keep=False)
        else:
            self._moved[goal] = place
            self.written[goal] = None
            self._has_links |= stat.S_ISLNK(_lstat(place).st_mode)
        self._vanish(name)

    def _move_really(self, place: str, goal: str, *, keep: bool) -> None:
        """Move a file on disk; the scratch folder may be on another disk."""
        if not keep:
            try:
                _OS["rename"](place, goal)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        if is_there(goal):
            _OS["unlink"](goal)
        if stat.S_ISLNK(_lstat(place).st_mode):
            _OS["symlink"](_readlink(place), goal)
        else:
            self._copy(place, goal)
        if not keep:
            _OS["unlink"](place)

    def _move_folder(self, name: str, goal: str) -> None:
        """Move a folder of the view, file by file: the user's files stay where they are and get other names."""
        if self._place(goal) is None:
            self.make_folder(goal)
        for entry in self._entries(name, name):
            source, target = _join(name, entry.name), _join(goal, entry.name)
            self._move_folder(source, target) if self._is_folder(source) else self._move_file(source, target)
        self.remove_folder(name)

    def make_folder(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """`os.mkdir`: where the program wants it."""
        name = self.name(path, dir_fd, follow=False)
        if name is None or (self._passes(name) and not self._is_gone(name)):
            _call("mkdir", path, self._on_disk(path, name), mode, dir_fd=dir_fd)
            if name is not None and self.pass_through.deciding(name) == self.pass_through.temporary:
                self.pass_through.made.add(name)
            return
        self._check_free(name, path)
        if _is_folder(name):
            self._remade.add(name)
        elif is_there(name):  # a file of the user's, which stays: the folder is made elsewhere
            _OS["mkdir"](target := self._new_place(name), mode)
            _OS["symlink"](target, place := self._new_place(name))
            self._moved[name], self._has_links = place, True
        else:
            _call("mkdir", path, name, mode)
            self.made[name] = None

    def remove_folder(self, path: Any, *, dir_fd: int | None = None) -> None:
        """`os.rmdir`."""
        name = self.name(path, dir_fd, follow=False)
        self._reals.clear()
        if name is None or not (self._is_hidden(name) or any(is_below(one, name) for one in self._moved)):
            _call("rmdir", path, self._on_disk(path, name), dir_fd=dir_fd)
            self.made.pop(name or "", None)
            self.pass_through.made.discard(name or "")
            return
        place = self._place(name)
        if place is None or not self._is_folder(name):
            raise _error(errno.ENOENT if place is None else errno.ENOTDIR, path)
        _refuse(self._entries(name, name), errno.ENOTEMPTY, path)
        self._vanish(name)

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        name = self.name(dst, dir_fd, follow=False)
        if name is None or (self._passes(name) and not self._is_gone(name)):
            dst, dir_fd = (name, None) if self._has_links and name is not None else (dst, dir_fd)
            _OS["symlink"](src, dst, target_is_directory, dir_fd=dir_fd)
            return
        self._check_free(name, src, dst)
        _OS["symlink"](src, place := self._new_place(name))
        self._moved[name], self._has_links = place, True
        self._reals.clear()

    def link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        name, goal = self.name(src, src_dir_fd, follow=False), self.name(dst, dst_dir_fd, follow=False)
        if name is None or goal is None or self._both_on_disk(name, goal):
            _OS["link"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
            return
        _refuse(self._place(name) is None, errno.ENOENT, src, dst)
        # Python follows links here only with a folder descriptor, and so finds a file without a name.
        follows = follow_symlinks and (src_dir_fd is not None or dst_dir_fd is not None)
        source = _readlink(name) if follows and name.startswith("/proc/") else name
        _refuse(_stat(_dirname(source)).st_dev != _stat(_dirname(goal)).st_dev, errno.EXDEV, src, dst)
        self._check_free(goal, src, dst)
        _refuse(self._is_folder(name), errno.EPERM, src, dst)
        place = self._own(name) if self._is_hidden(name) else name
        hidden = not self._passes(goal)
        target = self._new_place(goal) if hidden else goal
        try:
            _OS["link"](place, target, follow_symlinks=follow_symlinks)
        except OSError:  # the scratch folder is on another disk
            self._copy(place, target)
        if hidden:
            self._moved[goal] = target

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        place = self.to_read(path, dir_fd, follow=False)
        target = _call("readlink", path, place, dir_fd=dir_fd)
        return os.fsencode(target) if isinstance(path, bytes) else os.fsdecode(target)

    def piping(self, kind: str) -> Callable[..., None]:
        """`os.mkfifo` or `os.mknod`: where the program wants it."""

        def piped(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            name = self.name(path, dir_fd, follow=False)
            passes = name is None or self._passes(name)
            _OS[kind](path, *args, dir_fd=dir_fd, **kwargs)
            if name is not None and not passes:
                self.made[name] = None

        return piped

    def finding(self, kind: str, *, follow: bool = True) -> Callable[..., Any]:
        """A function of `os` that reads the metadata of a file."""

        def found(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self._moved or self._gone):
                return _OS[kind](path, *args, **kwargs)
            try:
                place = self.to_read(path, kwargs.get("dir_fd"), follow=follow and kwargs.get("follow_symlinks", True))
            except FileNotFoundError:
                if kind == "access":
                    return False
                raise
            return _call(kind, path, place, *args, **kwargs)

        return found

    def marking(self, kind: str, *, follow: bool = True) -> Callable[..., Any]:
        """A function of `os` that changes the metadata of a file, or its length."""

        def marked(path: Any, *args: Any, **kwargs: Any) -> Any:
            name = self.name(path, kwargs.get("dir_fd"), follow=follow and kwargs.get("follow_symlinks", True))
            if name is None or not self._is_hidden(name):
                return _call(kind, path, self._on_disk(path, name), *args, **kwargs)
            place = self._place(name)
            if place is None:
                raise _error(errno.ENOENT, *([] if kind == "utime" else [path]))  # whose error has no path
            mode = _lstat(place).st_mode
            if stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and not is_below(place, self._folder)):
                return None if kind != "truncate" else _OS[kind](path, *args)  # a folder of the user's stays as it is
            return _call(kind, path, place if stat.S_ISLNK(mode) else self._own(name), *args, **kwargs)

        return marked

    def listdir(self, path: Any = None) -> list[Any]:
        name, given = self._listed(path)
        return list(_OS["listdir"](path)) if name is None else [entry.name for entry in self._entries(name, given)]

    def scandir(self, path: Any = None) -> Any:
        name, given = self._listed(path)
        return _scandir(path) if name is None else _Listing(self._entries(name, given))

    def _listed(self, path: Any) -> tuple[str | None, Any]:
        """The name of a folder that the view has differently, and the path of its entries; raises if the folder is gone."""
        if not (self._moved or self._gone):
            return None, path
        given: Any = "" if isinstance(path, int) else os.fspath("." if path is None else path)
        name = _readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else self.name(given)
        if name is None or not name.startswith("/"):
            return None, path
        _refuse(self._is_gone(name), errno.ENOENT, path)
        _refuse(not self._is_folder(name), errno.ENOENT if self._place(name) is None else errno.ENOTDIR, path)
        inside = any(_dirname(one) == name for one in [*self._moved, *self._gone])
        differs = inside or self._has_links or any(one in self._gone for one in upwards(name))
        return (name, given) if differs else (None, path)

    def _entries(self, name: str, given: Any) -> list[Any]:
        """The entries of a folder in the view; files that the program wrote come last."""
        written = dict.fromkeys(_basename(one) for one in self._moved if _dirname(one) == name)
        with _scandir(name) as real:
            kept = [one.name for one in real if one.name not in written]
        there = [one for one in kept if not self._is_gone(_join(name, one))]
        shown: Callable[[str], Any] = os.fsencode if isinstance(given, bytes) else str
        return [_Entry(shown(one), _join(given, shown(one)), _join(name, one)) for one in [*there, *written]]


def _error(number: int, *paths: Any) -> OSError:
    """As the system raises it: the number decides the class."""
    files = (paths[0], None, paths[1]) if len(paths) > 1 else paths
    return OSError(number, os.strerror(number), *files)


def _refuse(refused: Any, number: int, *paths: Any) -> None:
    """Raise the error of the system if the program is refused what it wants."""
    if refused:
        raise _error(number, *paths)


def _call(kind: str, path: Any, place: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `os` with a place instead of a path; an error names the path."""
    if place is not path:
        kwargs.pop("dir_fd", None)
    try:
        return _OS[kind](place, *args, **kwargs)
    except OSError as error:
        if place is not path and error.filename == place:
            error.filename = path
        raise


def _is_folder(name: str) -> bool:
    """Whether it is a folder on disk."""
    return is_there(name) and stat.S_ISDIR(_lstat(name).st_mode)
