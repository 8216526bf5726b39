"""The sandbox: a diagnosed program runs as it would alone, and leaves the user's files unchanged.

The first mode that the machine permits is used. The first two rely on the kernel, so they cover every library and child process:

- `overlay` (sandbox_overlay.py): the program has its own view of the disk, in which all changes go to a scratch folder.
- `journal` (sandbox_journal.py): each file is copied before it is changed, and restored afterwards.
- `copies`: the current folder and the folder of the script are copied before the program starts, and restored afterwards.

Caches, installed packages and temporary files are not protected: compilers and hubs fill them for the next run and share them with
other processes.

child.py uses both sides: `Sandbox` in the process that starts the program, and `enter` in the process of the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import secrets
import shutil
import site
import socket
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

import msgspec

from stoker import _cache_files, _disk
from stoker.diagnose import sandbox_journal, sandbox_overlay
from stoker.diagnose.measurements import SandboxMode
from stoker.errors import OptionError, TrainError

MODES: tuple[SandboxMode, ...] = get_args(SandboxMode)  # in the order in which they are tried
MAX_COPIED = 2 << 30  # bytes that the mode `copies` copies, at most
VARIABLE = "STOKER_SANDBOX"
IN_HOME = (".cache", ".triton", ".nv/ComputeCache", ".cupy", ".config/matplotlib")  # default caches, in the home folder
VARIABLES = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "MPLCONFIGDIR")
"""Environment variables that name a cache and have no CACHE in their name."""
APART = ("/dev", "/proc", "/sys", "/run")
SYSTEM = {"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/snap", "/usr", "/var", "/lost+found", *APART}
"""Folders in which no overlay is mounted, unless the program runs there."""
SCRATCH_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
ENOUGH_SCRATCH = 16 << 30  # bytes of room, if TMPDIR has as much, for the files that a program changes
MAX_NAMED = 3


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to enter the sandbox."""

    modes: list[SandboxMode]  # to try, the best first
    scratch: str | None  # the folder for changes of an overlay
    rules: dict[str, bool]  # folders, and whether each is protected; the innermost decides
    needed: list[str]  # folders that an overlay must protect
    socket: int  # file descriptor on which the process answers


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the process: its mode, and protected folders at which no overlay could be mounted; or why it has no mode."""

    mode: SandboxMode | None = None
    unprotected: list[str] = []
    error: str = ""


def cache_folders(environ: Mapping[str, str], here: str) -> set[str]:
    """The caches of this user and the folders of installed packages, links resolved."""
    # A variable that names the home folder, the current folder (`here`) or a parent of them is ignored: the user's files are there.
    home = os.path.realpath(os.path.expanduser("~"))
    named = {value for name, value in environ.items() if value and ("CACHE" in name or name in VARIABLES)}
    named |= {os.path.join(value, "matplotlib") for name, value in environ.items() if name == "XDG_CONFIG_HOME"}
    real = {os.path.realpath(os.path.join(here, os.path.expanduser(one))) for one in named}
    caches = {one for one in real if not is_below(home, one) and not is_below(here, one)}
    packages = {*(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")), site.getusersitepackages()}
    return caches | {os.path.realpath(one) for one in packages} | {os.path.join(home, one) for one in IN_HOME}


def is_below(name: str, folder: str) -> bool:
    """Whether a path is this folder or inside it."""
    return name == folder or name.startswith(folder.rstrip("/") + "/")


def _temporary() -> str:
    return os.path.realpath(os.environ.get("TMPDIR", "/tmp"))


class Sandbox:
    """The sandbox of one program, as a context manager; the files are restored at its end.

    `program` is the path of a script, or None for a module. Raises `OptionError` if STOKER_SANDBOX is not a mode.
    """

    def __init__(self, program: Path | None) -> None:
        given = os.environ.get(VARIABLE)
        if given is not None and given not in MODES:
            raise OptionError(f"{VARIABLE} is {given!r}; expected one of {', '.join(MODES)}, or unset it.")
        self.mode: SandboxMode | None = None
        self._modes: list[SandboxMode] = [one for one in MODES if one == given or (given is None and one != "off")]
        self._here = os.path.realpath(Path.cwd())
        home = os.path.realpath(os.path.expanduser("~"))
        self._copied = sorted({self._here, *([] if program is None else [os.path.realpath(program.parent)])})
        self._needed = {*self._copied, *([home] if home != "/" and os.access(home, os.W_OK) else [])}
        self._caches = cache_folders(os.environ, self._here)
        self._rules = dict.fromkeys((*APART, *self._caches, _temporary()), False) | dict.fromkeys(self._needed, True)
        self._unprotected: list[str] = []
        self._scratch: Path | None = None
        self._around: str | None = None  # a folder that cannot be protected, as the scratch folder lies in it
        self._open = contextlib.ExitStack()
        self._journal: sandbox_journal.WriteJournal | None = None
        self._changed: list[str] = []  # paths or names of files that the program changed

    def __enter__(self) -> Self:
        for one in _journals().glob("*") if _journals().is_dir() else []:
            sandbox_journal.recover(one)
        self._make_caches()
        if "overlay" in self._modes:
            self._scratch = self._find_scratch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.mode == "overlay" and self._scratch is not None:
            self._changed = sandbox_overlay.written(self._scratch)
        elif self._journal is not None:
            self._changed = self._journal.changed
        self._open.close()

    def _make_caches(self) -> None:
        """Create the caches that do not exist yet, as the program would: one created in an overlay would be discarded."""
        rare = IN_HOME[1 if importlib.util.find_spec("triton") is None else 2 :]
        unlikely = {os.path.join(os.path.expanduser("~"), one) for one in rare} | {site.getusersitepackages()}
        for folder in map(Path, sorted(self._caches - unlikely)):
            with contextlib.suppress(OSError):
                if not os.path.lexists(folder) or not any(folder.iterdir()):
                    self._open.enter_context(_shared_cache(folder))

    def _find_scratch(self) -> Path | None:
        """A new folder outside the folders that must be protected; None if there is no such place."""
        places = [os.path.realpath(one) for one in (_temporary(), *SCRATCH_PLACES)]
        usable = [one for one in places if os.access(one, os.W_OK) and not any(is_below(one, folder) for folder in self._needed)]
        if not usable:
            return None
        # TMPDIR may lie in a folder with other files, which cannot be protected then: /tmp is better where it has room.
        others = _other_places()
        apart = [one for one in usable if not any(is_below(one, other) for other in others)]
        room = min(shutil.disk_usage(usable[0]).free, ENOUGH_SCRATCH)
        place = next((one for one in apart if shutil.disk_usage(one).free >= room), usable[0])
        folder = Path(place, f"stoker-diagnose-{secrets.token_hex(8)}")
        _disk.disk.mkdir(folder, 0o700)
        self._open.callback(_disk.remove_tree, folder)
        return folder

    def plan(self, descriptor: int) -> str:
        """The plan for a process that answers on this file descriptor, as JSON."""
        modes = [one for one in self._modes if one != "overlay" or self._scratch is not None]
        rules = dict(self._rules)
        if self._scratch is not None:
            for path, writable in _other_places().items():
                if not is_below(str(self._scratch), path):
                    rules.setdefault(path, writable)
                elif writable:
                    self._around = path
        scratch = None if self._scratch is None else str(self._scratch)
        made = SandboxPlan(modes=modes, scratch=scratch, rules=rules, needed=sorted(self._needed), socket=descriptor)
        return msgspec.json.encode(made).decode()

    def wait_until_entered(self, answers: socket.socket) -> None:
        """Wait until the process has entered the sandbox, and begin to save files in the modes `journal` and `copies`.

        Raises `TrainError` if it could not enter.
        """
        data, descriptors, _, _ = socket.recv_fds(answers, 1 << 16, 1)
        if not data:
            return  # it has ended; its exit code says why
        entered = msgspec.json.decode(data, type=Entered)
        if entered.mode is None:
            raise TrainError(
                f"your files cannot be protected on this machine: {entered.error}. Run a copy of the program in a copy of its folder, "
                f"with the environment variable {VARIABLE}=off."
            )
        self.mode, self._unprotected = entered.mode, entered.unprotected
        if entered.mode == "overlay" and self._around is not None:
            self._unprotected = [*self._unprotected, self._around]
        if entered.mode in ("journal", "copies"):
            name = hashlib.sha256(os.fsencode(self._here)).hexdigest()[:16]
            self._journal = sandbox_journal.WriteJournal(_journals() / name)
            self._open.callback(self._journal.close)
            if descriptors:
                self._open.callback(sandbox_journal.WriteWatch(descriptors[0], self._before_change).close)
            else:
                self._copy_files(self._journal)
            answers.sendall(b".")  # the program may begin

    def _copy_files(self, journal: sandbox_journal.WriteJournal) -> None:
        """Copy the files of the program's folders; raises `TrainError` if they are too large."""
        total = 0
        for folder in self._copied:
            for above, folders, files in os.walk(folder):
                folders[:] = [one for one in folders if self.protects(os.path.join(above, one))]
                journal.save_names(above)
                for path in (os.path.join(above, name) for name in (*folders, *files)):
                    total += os.lstat(path).st_size
                    if total > MAX_COPIED:
                        raise TrainError(
                            f"your files cannot be protected on this machine: overlays and journals are not permitted, and {folder} has "
                            f"more than {MAX_COPIED >> 30} GB to copy. Run a copy of the program in another folder, with the "
                            f"environment variable {VARIABLE}=off."
                        )
                    journal.save(path)

    def _before_change(self, path: str, *, removes: bool, moves: bool) -> None:
        if self._journal is not None and self.protects(path):
            self._journal.save(path, removes=removes, moves=moves)

    def protects(self, path: str) -> bool:
        """Whether a path, links resolved, is protected by a journal."""
        folder = sandbox_overlay.innermost(path, self._rules)
        return not is_below(path, str(_journals())) and (folder is None or self._rules[folder])

    def notes(self) -> list[str]:
        """Notes for the user, after the program has ended."""
        names = _first_few([os.path.basename(one) for one in self._changed])
        if self.mode == "overlay":
            what = f"; what it wrote ({names}) was discarded" if names else ""
            notes = [f"Your files are unchanged: the program ran in an overlay of them{what}."]
        elif self.mode == "journal":
            what = f"; what it changed ({names}) was copied before and restored" if names else ""
            notes = [f"Your files are unchanged: the program ran with a journal, as overlays are not permitted here{what}."]
        elif self.mode == "copies":
            notes = [
                f"The files in {' and '.join(self._copied)} are unchanged: they were copied before the program ran and restored, as "
                "overlays and journals are not permitted here. Other folders were not protected."
            ]
        else:
            notes = [f"Your files were not protected ({VARIABLE}=off)."]
        if self._unprotected:
            notes.append(
                f"No overlay could be mounted at {_first_few(self._unprotected)}: what the program wrote there is changed."
            )
        return notes


def enter(plan_json: str) -> None:
    """Enter the sandbox with this process, which must have no threads yet, and all that it starts."""
    plan = msgspec.json.decode(plan_json, type=SandboxPlan)
    with socket.socket(fileno=plan.socket) as answers:
        reasons = []
        for mode in plan.modes:
            try:
                _enter_mode(mode, plan, answers)
            except OSError as error:
                reasons.append(f"{mode}: {error.strerror or error}")
            else:
                sandbox_overlay.end_with_parent()
                return
        answers.sendall(msgspec.json.encode(Entered(error="; ".join(reasons) or "there is no place for a scratch folder")))
    raise SystemExit(1)


def _enter_mode(mode: SandboxMode, plan: SandboxPlan, answers: socket.socket) -> None:
    """Enter in this mode, and answer. Raises `OSError` if the machine does not permit it."""
    unprotected, descriptors = [], []
    if mode == "overlay" and plan.scratch is not None:
        _try_overlay(plan)
        unprotected = sandbox_overlay.enter(Path(plan.scratch), plan.rules, set(plan.needed))
    elif mode == "journal":
        descriptors = [sandbox_journal.install_watch()]
    answer = msgspec.json.encode(Entered(mode=mode, unprotected=unprotected))
    socket.send_fds(answers, [answer], descriptors)
    for one in descriptors:
        os.close(one)
    if mode in ("journal", "copies") and not answers.recv(1):
        raise SystemExit(1)  # the files could not be saved


def _try_overlay(plan: SandboxPlan) -> None:
    """Raise `OSError` unless a fork can enter the overlay: a process that fails halfway could not leave it again."""
    scratch = Path(str(plan.scratch), "try")
    _disk.disk.mkdir(scratch, 0o700)
    child = os.fork()
    if child == 0:
        number = 1
        try:
            sandbox_overlay.enter(scratch, plan.rules, set(plan.needed))
            number = 0
        except OSError as error:
            number = error.errno or 1
        finally:
            os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))


def _other_places() -> dict[str, bool]:
    """Other folders of the disk that get an overlay, and whether each can be written to."""
    found = {f"/{name}": True for name in os.listdir("/") if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")}
    found |= {path: writable for path, writable in sandbox_overlay.mount_points().items() if path != "/"}
    apart = (*SYSTEM, _temporary(), *SCRATCH_PLACES)
    return {path: writable for path, writable in found.items() if not any(is_below(path, one) for one in apart)}


def _journals() -> Path:
    """The folder of all journals of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.path.realpath(cache), "stoker", "journals")


@contextlib.contextmanager
def _shared_cache(folder: Path) -> Iterator[None]:
    """Make a cache that does not exist yet. At the end it is removed again if it is empty and no other sandbox uses it."""
    # A folder that is removed while it is mounted in another process stays there, but nothing can be made in it any more.
    is_new, held = not os.path.lexists(folder), -1
    try:
        while held < 0:
            _cache_files.make_cache_folder(folder)
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_SH)
            if not os.path.isdir(folder) or not os.path.samestat(os.fstat(held), folder.stat()):  # removed before it was locked
                os.close(held)
                held = -1
        yield
        if is_new:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _disk.disk.rmdir(folder)
    finally:
        if held >= 0:
            os.close(held)


def _first_few(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - MAX_NAMED} more" if len(distinct) > MAX_NAMED else ""
    named = (os.fsencode(one).decode(errors="replace") for one in distinct[:MAX_NAMED])
    return ", ".join(named) + more
