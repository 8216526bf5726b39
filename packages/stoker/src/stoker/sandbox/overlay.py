"""The `overlay` mode of the sandbox: the process gets its own view of the disk, in which all changes go to a scratch folder.

The kernel does it (a mount namespace with overlayfs), so it covers every library, database and child process. Root needs no user
namespace. Other users get one in which they keep their user id and gain no privileges; overlayfs supports that since Linux 5.11.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker import _disk
from stoker.sandbox import files, kernel, landlock, unreadable

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18


def enter(
    scratch: Path,
    rules: Mapping[str, bool],
    needed: set[str],
    *,
    hidden: Sequence[str] = (),
    private: Sequence[str] = (),
    confined: bool = False,
) -> list[str]:
    """Give this process, which must have no threads yet, its own view of the disk. Returns folders that it could not protect.

    `rules` say of folders and mounted files whether each is protected; the innermost decides. `scratch` gets the changes, and must not
    be in a protected folder. Raises `OSError` if this is not permitted, or if a folder of `needed` cannot be protected.
    """
    here, is_root = Path.cwd(), os.geteuid() == 0
    devices = {path: os.stat(path).st_dev for path in rules if os.path.exists(path)}
    mounted = {mount.path for mount in kernel.mounts()}
    _enter_namespace(is_root=is_root)
    overlaid: dict[str, bool] = {}
    with contextlib.ExitStack() as opened:
        # Opened before anything is mounted over them; parents come before their subfolders.
        sources = {path: _open(path, opened) for path in sorted(devices, key=lambda path: path.rstrip("/").count("/"))}
        for number, (path, source) in enumerate(sources.items()):
            above = overlaid.get(innermost(path, overlaid) or "", False)
            if source is None or (rules[path] == above and path not in mounted):
                continue
            overlaid[path] = rules[path] and _mount_overlay(path, source, scratch / str(number), is_root=is_root)
            if not overlaid[path] and above:
                kernel.call("mount", os.fsencode(source), os.fsencode(path), None, MS_BIND | MS_REC, None)
        _hide(scratch, hidden, private)
    os.chdir(here)
    if not is_root:  # the first process of a user namespace has all of them
        kernel.keep_capabilities(0)
        kernel.call("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)  # so that it can still read its own /proc/self
    elif confined:
        unreadable.drop_capabilities()
        landlock.hide_other_processes()
    _move_between_views(devices)
    missing = [path for path in devices if rules[path] and not overlaid.get(innermost(path, overlaid) or "", False)]
    if lacking := needed.intersection(missing):
        raise OSError(errno.EPERM, f"no overlay can be mounted at {lacking.pop()}")
    return [path for path in missing if os.access(path, os.W_OK)]


def _hide(scratch: Path, hidden: Sequence[str], private: Sequence[str]) -> None:
    """Mount what cannot be opened over some files, and something empty over some folders."""
    if hidden:
        file, folder = files.make_blocked(scratch)
        for path in (*hidden, *(unreadable.raw_devices() if os.geteuid() == 0 else ())):
            kernel.call("mount", os.fsencode(folder if os.path.isdir(path) else file), os.fsencode(path), None, MS_BIND, None)
    opened = []
    for number in range(len(private)):  # all before the first mount, which may hide the scratch folder
        files.make_temporary(scratch / f"private{number}")
        opened.append(os.open(scratch / f"private{number}", os.O_PATH | os.O_CLOEXEC))
    for path, descriptor in zip(private, opened, strict=True):
        kernel.call("mount", os.fsencode(f"/proc/self/fd/{descriptor}"), os.fsencode(path), None, MS_BIND, None)
        os.close(descriptor)


def innermost(path: str, folders: Mapping[str, object]) -> str | None:
    """The innermost of some folders that is a path or contains it."""
    while path not in folders:
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    return path


def _enter_namespace(*, is_root: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.call("unshare", CLONE_NEWNS if is_root else CLONE_NEWNS | CLONE_NEWUSER)
    if not is_root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            files.write_to_kernel(Path("/proc/self", name), text)
    kernel.call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def _open(path: str, opened: contextlib.ExitStack) -> str | None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not permitted to this user
        return None
    opened.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def _mount_overlay(path: str, source: str, folder: Path, *, is_root: bool) -> bool:
    """Mount an overlay over a folder; False if the file system does not support it."""
    upper, work, state = folder / "upper", folder / "work", os.stat(source)
    for place in (folder, upper, work):
        _disk.disk.mkdir(place, 0o700)
    try:
        # The root of the view is the folder for changes, so that one gets the attributes of the folder itself.
        files.set_state(upper, state, owner=is_root)
        if not is_root:
            os.setxattr(upper, "user.stoker", b"1")  # overlayfs needs these attributes here, and not every file system has them
        options = f"lowerdir={source},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        # Hard links stay together, and a large file that is renamed is not copied; older systems do not have these options.
        kinds = (",redirect_dir=on,index=on,metacopy=on", ",redirect_dir=on") if is_root else (",userxattr",)
        return any(_mounts(path, options + kind) for kind in kinds)
    except OSError:
        return False


def _mounts(path: str, options: str) -> bool:
    try:
        kernel.call("mount", b"stoker", os.fsencode(path), b"overlay", 0, os.fsencode(options))
    except OSError:
        return False
    return True


def _escaped(path: Path) -> str:
    return re.sub(r"([\\,:])", r"\\\1", str(path))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    kernel.call("prctl", kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _move_between_views(devices: Mapping[str, int]) -> None:
    """Make `os.rename`, `os.replace` and `os.link` copy where only the overlays prevent them.

    Overlayfs refuses them between two of its mounts, and in a user namespace also for folders that are not new.
    """

    def device(path: Any) -> int:
        name = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        folder = innermost(name, devices)
        return devices[folder] if folder is not None else os.stat(name).st_dev

    def copying(original: Callable[..., None], *, keeps: bool) -> Callable[..., None]:
        @functools.wraps(original)
        def moved(src: Any, dst: Any, **options: Any) -> None:
            try:
                original(src, dst, **options)
            except OSError as error:
                if error.errno != errno.EXDEV or options or device(src) != device(dst):
                    raise
                try:
                    files.move_by_copy(Path(os.fsdecode(src)), Path(os.fsdecode(dst)), original, keeps=keeps)
                except OSError as failure:  # which may name the copy
                    raise OSError(failure.errno, failure.strerror, src, None, dst) from None

        return moved

    for name in ("rename", "replace", "link"):
        original = getattr(os, name)
        setattr(os, name, moved := copying(original, keeps=name == "link"))
        for kind in (os.supports_dir_fd, os.supports_follow_symlinks):
            kind |= {moved} if original in kind else set()
