"""Scratch: what the program writes while it is diagnosed goes to a folder that is thrown away; no file of the user's is changed.

Python's own ways to write are led there: `open`, `os.open`, `torch.save`, safetensors; and what renames, moves or removes follows.
A file that the program has written is found again under its own name by the same ways, and in listings of its folder; what it has
removed is found no more. What other processes and databases write is noted (`outside`); what libraries write by other means is not
seen. Folders are made where the program wants them, and go again if they stay empty. In the folder for temporary files only what
was there before is kept apart: the rest is what programs throw away themselves.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import files
from stoker.diagnose.listing import Entry, Listing
from stoker.diagnose.outside import Outside

_open, _access, _lstat, _scandir = open, os.access, os.lstat, os.scandir
APART = ("/dev", "/proc", "/sys", "/run")
MAX_NAMED = 3


class Scratch:
    """A folder for what a program writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[str, str] = {}
        """Where a file is that the program has written, by the name that the program has for it."""
        self._gone: set[str] = set()
        """Files and folders of the user's that the program has removed, as it believes."""
        self._remade: set[str] = set()
        """Folders of these that it has made again, and that are empty for it."""
        self._here = str(Path.cwd())
        self._spared = (*APART, str(folder))
        self._temporary = os.environ.get("TMPDIR", "/tmp")
        self._made: list[Path] = []
        """Folders that the program has made."""
        self._passing: list[str] = []
        """Folders that it has made among temporary files."""
        self._began_ns = 0
        self._outside = Outside()
        self._undo: list[Callable[[], Any]] = []

    # ---- names ----

    def to_write(self, path: Any) -> Any:
        """Where to write instead."""
        name = _name(path)
        if name is None or self._is_apart(name):
            return path
        if name not in self._moved:
            self._moved[name] = str(self._folder / f"{len(self._moved)}-{os.path.basename(name)}")  # noqa: PTH119
        return self._moved[name]

    def to_read(self, path: Any) -> Any:
        """Where it is; raises for what the program has removed."""
        name = _name(path)
        if name is None:
            return path
        if self._is_gone(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return self._moved.get(name, path)

    def _is_apart(self, name: str) -> bool:
        if any(_is_below(name, one) for one in self._spared):
            return True
        if _is_below(name, self._here) or not _is_below(name, self._temporary):
            return False
        return name == self._temporary or not self._was_before(name)

    def _was_before(self, name: str) -> bool:
        """Whether something among temporary files was there before the program."""
        if name in self._moved:
            return True
        if not _access(name, os.F_OK) or any(_is_below(name, one) for one in self._passing):
            return False
        # A folder is as new as what was last made in it, so its age tells nothing; a file is as new as what was last written.
        state = _lstat(name)
        return stat.S_ISDIR(state.st_mode) or state.st_ctime_ns < self._began_ns

    def _is_gone(self, name: str) -> bool:
        if not self._gone or name in self._moved or name in self._remade or any(_is_below(name, str(one)) for one in self._made):
            return False
        return any(_is_below(name, one) for one in self._gone)

    def _is_there(self, path: Any) -> bool:
        return _access(os.fspath(path), os.F_OK) and not self._is_gone(_name(path) or "")

    def _parent_is_there(self, path: Any) -> bool:
        return self._is_there(os.path.dirname(_name(path) or "") or ".")  # noqa: PTH120

    # ---- ways to write ----

    def install(self) -> None:
        """Lead writes to the folder."""
        files.make_folder(self._folder)
        self._began_ns = _lstat(self._folder).st_ctime_ns
        opened = self._opening(builtins.open)
        self._replace(builtins, "open", opened)
        self._replace(io, "open", opened)
        self._replace(os, "open", self._opening_low(os.open))
        for owner, name in ((os, "replace"), (os, "rename"), (shutil, "move")):
            self._replace(owner, name, self._moving(getattr(owner, name)))
        for owner, name in ((os, "remove"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")):
            self._replace(owner, name, self._removing(getattr(owner, name)))
        self._replace(os, "mkdir", self._making(os.mkdir))
        for owner, name in ((os.path, "getsize"), (os, "stat"), (os, "lstat"), (os, "listxattr"), (os, "getxattr")):
            self._replace(owner, name, self._finding(getattr(owner, name)))
        for owner, name in ((os.path, "exists"), (os.path, "lexists"), (os.path, "isfile"), (os.path, "isdir"), (os, "access")):
            self._replace(owner, name, self._asking(getattr(owner, name)))
        self._replace(os, "listdir", self._listing(os.listdir))
        self._replace(os, "scandir", self._scanning(os.scandir))
        for name in ("utime", "chmod", "setxattr"):
            self._replace(os, name, self._marking(getattr(os, name)))
        self._install_torch()
        self._outside.install()

    def _install_torch(self) -> None:
        import safetensors.numpy
        import safetensors.torch
        import torch

        save, load = torch.save, torch.load

        @functools.wraps(save)
        def saving(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            save(obj, self.to_write(f), *args, **kwargs)

        @functools.wraps(load)
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            return load(self.to_read(f), *args, **kwargs)

        self._replace(torch, "save", saving)
        self._replace(torch, "load", loading)
        for owner in (safetensors.torch, safetensors.numpy):
            original = owner.save_file

            def storing(tensors: Any, filename: Any, *args: Any, _original: Any = original, **kwargs: Any) -> None:
                _original(tensors, self.to_write(filename), *args, **kwargs)

            self._replace(owner, "save_file", functools.wraps(original)(storing))

    def remove(self) -> None:
        """All ways to write are as before, and folders that stayed empty are gone."""
        self._outside.remove()
        while self._undo:
            self._undo.pop()()
        for folder in reversed(self._made):
            if folder.is_dir() and not any(folder.iterdir()):
                files.disk.rmdir(folder)

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, by)
        self._undo.append(lambda: setattr(owner, name, original))

    def _opening(self, original: Any) -> Any:
        @functools.wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+"):
                return original(self.to_read(file), mode, *args, **kwargs)
            name = _name(file)
            if name is None or self._is_apart(name):
                return original(file, mode, *args, **kwargs)
            known, there = name in self._moved, self._is_there(file)
            if "x" in mode and there:
                return original(file, mode, *args, **kwargs)  # the error that the program would have seen
            if not known and not there and ("r" in mode or not self._parent_is_there(file)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
            target = self.to_write(file)
            if not known and there and ("a" in mode or "r" in mode):
                self._continue(file, target)
            return original(target, mode, *args, **kwargs)

        return opened

    def _opening_low(self, original: Any) -> Any:
        @functools.wraps(original)
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                return original(self.to_read(path), flags, *args, **kwargs)
            name = _name(path)
            if name is None or self._is_apart(name):
                return original(path, flags, *args, **kwargs)
            known, there = name in self._moved, self._is_there(path)
            if flags & os.O_EXCL and there:
                return original(path, flags, *args, **kwargs)
            if not known and not there and not (flags & os.O_CREAT and self._parent_is_there(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            target = self.to_write(path)
            if there and not known:
                flags |= os.O_CREAT
                if not flags & os.O_TRUNC:
                    self._continue(path, target)
            return original(target, flags, *args, **kwargs)

        return opened

    def _continue(self, path: Any, target: str) -> None:
        """Copy a file of the user's: it is continued in the scratch folder."""
        with _open(path, "rb") as old:
            files.copy_file(old, Path(target))

    def _moving(self, original: Any) -> Any:
        into_folders = original is shutil.move

        @functools.wraps(original)
        def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            name, goal = _name(source), _name(target)
            if name is None or goal is None or any(kwargs.get(one) is not None for one in ("src_dir_fd", "dst_dir_fd")):
                return original(source, target, *args, **kwargs)
            if into_folders and Path(goal).is_dir():
                goal = str(Path(goal, Path(name).name))
            if self._is_gone(name):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            if name in self._moved:
                self._moved[goal] = self._moved.pop(name)
                if self._is_users(name):
                    self._gone.add(name)
            elif self._is_users(name):
                if Path(name).is_file():
                    self._continue(name, self.to_write(goal))
                self._hide(name)
            elif Path(name).is_dir():
                original(source, target, *args, **kwargs)
                self._made.append(Path(goal))
                for one in [one for one in self._moved if _is_below(one, name)]:
                    self._moved[goal + one[len(name) :]] = self._moved.pop(one)
            else:
                original(source, self.to_write(goal), *args, **kwargs)
            return target

        return moved

    def _removing(self, original: Any) -> Any:
        @functools.wraps(original)
        def removed(path: Any, *args: Any, **kwargs: Any) -> Any:
            name = _name(path)
            if name is None or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            if self._is_gone(name):
                if kwargs.get("ignore_errors") or (args and args[0] is True):
                    return None
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if name in self._moved:
                place = self._moved.pop(name)
                if self._is_users(name):
                    self._gone.add(name)
                return original(place, *args, **kwargs)
            if self._is_users(name):
                self._hide(name)
                return None
            self._forget(name)
            return original(path, *args, **kwargs)

        return removed

    def _hide(self, name: str) -> None:
        """The program has removed something of the user's, and all that is in it."""
        self._forget(name)
        self._remade = {one for one in self._remade if not _is_below(one, name)}
        for folder in [one for one in reversed(self._made) if _is_below(str(one), name) and _access(one, os.F_OK)]:
            if not any(folder.iterdir()):
                files.disk.rmdir(folder)
        self._gone.add(name)

    def _forget(self, name: str) -> None:
        for one in [one for one in self._moved if _is_below(one, name)]:
            del self._moved[one]

    def _making(self, original: Any) -> Any:
        @functools.wraps(original)
        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            name = _name(path)
            if name is not None and self._is_gone(name) and _access(name, os.F_OK) and self._parent_is_there(path):
                self._remade.add(name)
                return
            fresh = name is not None and not _access(name, os.F_OK)
            original(path, *args, **kwargs)
            if name is not None and fresh:
                passing = _is_below(name, self._temporary) and not _is_below(name, self._here)
                self._passing.append(name) if passing else self._made.append(Path(name))

        return made

    def _marking(self, original: Any) -> Any:
        @functools.wraps(original)
        def marked(path: Any, *args: Any, **kwargs: Any) -> Any:
            name = _name(path)
            if name is not None and kwargs.get("dir_fd") is None and name not in self._moved and self._is_users(name):
                return None
            return original(self.to_read(path), *args, **kwargs)

        return marked

    def _finding(self, original: Any) -> Any:
        @functools.wraps(original)
        def found(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.to_read(path), *args, **kwargs)

        return found

    def _asking(self, original: Any) -> Any:
        @functools.wraps(original)
        def asked(path: Any, *args: Any, **kwargs: Any) -> Any:
            name = _name(path)
            return False if name is not None and self._is_gone(name) else original(self.to_read(path), *args, **kwargs)

        return asked

    # ---- listings ----

    def _listing(self, original: Any) -> Any:
        @functools.wraps(original)
        def listed(path: Any = None) -> list[Any]:
            name = _name("." if path is None else path)
            if name is None:  # a descriptor
                return list(original(path))
            self.to_read(name)
            return [entry.name for entry in self._entries(name, path)] if self._differs(name) else list(original(path))

        return listed

    def _scanning(self, original: Any) -> Any:
        @functools.wraps(original)
        def scanned(path: Any = None) -> Any:
            name = _name("." if path is None else path)
            if name is None:
                return original(path)
            self.to_read(name)
            return Listing(iter(self._entries(name, path))) if self._differs(name) else original(path)

        return scanned

    def _differs(self, name: str) -> bool:
        """Whether a folder is not as the program believes it to be."""
        inside = any(os.path.dirname(one) == name for one in [*self._moved, *self._gone])  # noqa: PTH120
        return inside or any(_is_below(name, one) for one in self._gone)

    def _entries(self, name: str, path: Any) -> list[Any]:
        """The entries of a folder as the program believes it to be; those of files that it wrote come last."""
        folder: Any = os.fspath("." if path is None else path)
        written: dict[Any, str] = {}
        for one, place in list(self._moved.items()):
            if os.path.dirname(one) == name:  # noqa: PTH120
                base = os.path.basename(one)  # noqa: PTH119
                written[os.fsencode(base) if isinstance(folder, bytes) else base] = place
        with _scandir(folder) as real:
            kept = [one for one in real if one.name not in written]
        there = [one for one in kept if not self._is_gone(os.path.join(name, os.fsdecode(one.name)))]  # noqa: PTH118
        return [*there, *(Entry(base, os.path.join(folder, base), place) for base, place in written.items())]  # noqa: PTH118

    def _is_users(self, name: str) -> bool:
        """Whether a file or folder is there that may have been before the program."""
        if self._is_apart(name) or not self._is_there(name):
            return False
        # Told by where it is, not by its age: a folder of the user's is as new as what was last made in it.
        return not any(_is_below(name, str(one)) for one in self._made)

    def notes(self) -> list[str]:
        """What the user should know of it."""
        found = []
        if self._moved:
            named = ", ".join(os.path.basename(one) for one in list(self._moved)[:MAX_NAMED])  # noqa: PTH119
            more = f" and {len(self._moved) - MAX_NAMED} more" if len(self._moved) > MAX_NAMED else ""
            found.append(f"What the program wrote ({named}{more}) went to a scratch folder, not to files of these names.")
        if self._gone:
            found.append(f"{len(self._gone)} files or folders that the program wanted to remove or replace are still there.")
        return [*found, *self._outside.notes()]


def _name(path: Any) -> str | None:
    """The full name of a path; None for descriptors and open files."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)
