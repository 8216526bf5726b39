"""Scratch: what the program writes while it is diagnosed goes to a folder that is thrown away; no file of the user's is changed.

Python's own ways to write are led there: `open`, `os.open`, `torch.save`, safetensors; and what renames, moves or removes follows.
A file that the program has written is found again under its own name by the same ways. What libraries write by other means is not
seen; folders are made where the program wants them, and go again if they stay empty.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import files

_open = open
APART = ("/dev", "/proc", "/sys", "/run")
MAX_NAMED = 3


class Scratch:
    """A folder for what a program writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[str, str] = {}
        """Where a file is that the program has written, by the name that the program has for it."""
        self._kept: set[str] = set()
        """Files of the user's that the program wanted to remove."""
        self._here = str(Path.cwd())
        self._spared = (*APART, str(folder))
        self._temporary = os.environ.get("TMPDIR", "/tmp")
        self._made: list[Path] = []
        """Folders that the program has made."""
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
        """Where it is."""
        name = _name(path)
        return path if name is None else self._moved.get(name, path)

    def _is_apart(self, name: str) -> bool:
        if _is_below(name, self._here):
            return any(_is_below(name, one) for one in self._spared)
        return any(_is_below(name, one) for one in (*self._spared, self._temporary))

    # ---- ways to write ----

    def install(self) -> None:
        """Lead writes to the folder."""
        files.make_folder(self._folder)
        opened = self._opening(builtins.open)
        self._replace(builtins, "open", opened)
        self._replace(io, "open", opened)
        self._replace(os, "open", self._opening_low(os.open))
        for owner, name in ((os, "replace"), (os, "rename"), (shutil, "move")):
            self._replace(owner, name, self._moving(getattr(owner, name)))
        for owner, name in ((os, "remove"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")):
            self._replace(owner, name, self._removing(getattr(owner, name)))
        self._replace(os, "mkdir", self._making(os.mkdir))
        for owner, name in ((os.path, "exists"), (os.path, "isfile"), (os.path, "getsize"), (os, "stat")):
            self._replace(owner, name, self._finding(getattr(owner, name)))
        for name in ("utime", "chmod"):
            self._replace(os, name, self._marking(getattr(os, name)))
        self._install_torch()

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
            if "x" in mode and _name(file) is not None and _exists(file):
                return original(file, mode, *args, **kwargs)  # the error that the program would have seen
            known = _name(file) in self._moved
            target = self.to_write(file)
            if target is not file and not known and ("a" in mode or "r" in mode) and _exists(file):
                self._continue(file, target)
            if target is not file and "w" in mode and not _parent_exists(file):
                return original(file, mode, *args, **kwargs)
            return original(target, mode, *args, **kwargs)

        return opened

    def _opening_low(self, original: Any) -> Any:
        @functools.wraps(original)
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                return original(self.to_read(path), flags, *args, **kwargs)
            known, there = _name(path) in self._moved, _name(path) is not None and _exists(path)
            if (flags & os.O_EXCL and there) or not (known or there or _parent_exists(path)):
                return original(path, flags, *args, **kwargs)
            target = self.to_write(path)
            if target is not path and there and not known:
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
            if name in self._moved:
                self._moved[goal] = self._moved.pop(name)
            elif self._is_users(name):
                self._kept.add(name)
                if Path(name).is_file():
                    self._continue(name, self.to_write(goal))
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
            if name in self._moved:
                return original(self._moved.pop(name), *args, **kwargs)
            if self._is_users(name):
                self._kept.add(name)
                return None
            for one in [one for one in self._moved if _is_below(one, name)]:
                del self._moved[one]
            return original(path, *args, **kwargs)

        return removed

    def _making(self, original: Any) -> Any:
        @functools.wraps(original)
        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            original(path, *args, **kwargs)
            name = _name(path)
            if name is not None and not self._is_apart(name):
                self._made.append(Path(name))

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

    def _is_users(self, name: str) -> bool:
        """Whether a file or folder is there that may have been before the program."""
        if self._is_apart(name) or not _exists(name):
            return False
        # Told by where it is, not by its age: a folder of the user's is as new as what was last made in it.
        return not any(_is_below(name, str(one)) for one in self._made)

    def notes(self) -> list[str]:
        """What the user should know of it."""
        found = []
        if self._moved:
            named = ", ".join(os.path.basename(one) for one in list(self._moved)[:MAX_NAMED])  # noqa: PTH119
            more = f" and {len(self._moved) - MAX_NAMED} more" if len(self._moved) > MAX_NAMED else ""
            found.append(f"What the program wrote ({named}{more}) went to a scratch folder; its own files are as they were.")
        if self._kept:
            found.append(f"{len(self._kept)} files or folders that the program wanted to remove or replace are still there.")
        return found


def _name(path: Any) -> str | None:
    """The full name of a path; None for descriptors and open files."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def _exists(path: Any) -> bool:
    return os.access(os.fspath(path), os.F_OK)


def _parent_exists(path: Any) -> bool:
    return os.access(os.path.dirname(_name(path) or "") or ".", os.F_OK)  # noqa: PTH120
