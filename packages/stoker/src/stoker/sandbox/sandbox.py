"""The sandbox: a diagnosed program runs as it would alone, and cannot change the user's files.

Nothing is restored, overwritten or deleted afterwards: the kernel refuses or redirects every change, of all libraries and child
processes. The first mode that the machine permits is used:

- `overlay` (overlay.py): the program has its own view of the disk, in which all changes go to a scratch folder.
- `landlock` (landlock.py): the program runs in a mirror of its folders, and the kernel refuses changes of files elsewhere.
- `off`: the program runs unprotected, as by `python train.py`; a line says so before it starts.

Caches, installed packages and temporary files are not protected: compilers and hubs fill them for the next run and share them with
other processes.

`Sandbox` is for the process that starts the program, and `enter` for the process of the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import shutil
import site
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

import msgspec

from stoker import _cache_files, _disk
from stoker._clock import now_ns
from stoker.errors import OptionError, TrainError
from stoker.sandbox import files, kernel, landlock, overlay
from stoker.sandbox.unreadable import is_above, is_below, other_mounts

SandboxMode = Literal["overlay", "landlock", "off"]
MODES: tuple[SandboxMode, ...] = get_args(SandboxMode)  # in the order in which they are tried
CHOICES = ("auto", *MODES, "require")  # of the user; `require` refuses to run a program unprotected
VARIABLE = "STOKER_SANDBOX"
SCRATCH = "stoker-diagnose-"  # the names of scratch folders begin with it
IN_HOME = (".cache", ".triton", ".nv/ComputeCache", ".cupy", ".config/matplotlib")  # default caches, in the home folder
VARIABLES = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "MPLCONFIGDIR")
"""Environment variables that name a cache and have no CACHE in their name."""
APART = ("/dev", "/proc", "/sys", "/run")
SYSTEM = {"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/snap", "/usr", "/var", "/lost+found", *APART}
"""Folders in which no overlay is mounted, unless the program runs there."""
SCRATCH_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
ENOUGH_SCRATCH = 16 << 30  # bytes of room, if TMPDIR has as much, for the files that a program changes
MAX_NAMED = 3
PATIENCE_SECONDS = 5.0  # until processes of a program that has ended have ended, too
NOTES: dict[SandboxMode, str] = {
    "overlay": "Your files are unchanged: the program ran in an overlay of them, and what it wrote was discarded.",
    "landlock": "Your files are unchanged: the program ran in a mirror of its folder, and the kernel (Landlock) refused changes elsewhere.",
    "off": "Your files were not protected: the program ran as by python itself.",
}


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to enter the sandbox."""

    modes: list[SandboxMode]  # to try, the best first
    scratch: str | None  # the folder for changes of an overlay
    rules: dict[str, bool]  # folders, and whether each is protected; the innermost decides
    needed: list[str]  # folders that must be protected
    mirrored: list[str]  # folders in which the program runs, of which Landlock needs a mirror
    hidden: list[str] = []  # files and folders that cannot be read
    sealed: bool = False  # whether caches, packages and temporary files are protected, too
    private: list[str] = []  # folders that an overlay replaces by an empty one
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
    real = {os.path.realpath(os.path.join(here, os.path.expanduser(path))) for path in named}
    caches = {path for path in real if not is_below(home, path) and not is_below(here, path)}
    packages = {*(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")), site.getusersitepackages()}
    return caches | {os.path.realpath(package) for package in packages} | {os.path.join(home, name) for name in IN_HOME}


def _temporary() -> str:
    return os.path.realpath(os.environ.get("TMPDIR", "/tmp"))


class Sandbox:
    """The sandbox of one program, as a context manager.

    `program` is the path of a script, or None for a module. With `required` it is never run
    unprotected. `hidden` are files and folders that it cannot read. With `sealed` also caches, installed
    packages and temporary files are as before: it leaves nothing for another program to read or to run.
    Raises `OptionError` if STOKER_SANDBOX is not one of `CHOICES`.
    """

    def __init__(self, program: Path | None, *, required: bool = False, hidden: Sequence[str] = (), sealed: bool = False) -> None:
        choice = os.environ.get(VARIABLE, "auto")
        if choice not in CHOICES:
            raise OptionError(f"{VARIABLE} is {choice!r}; expected one of {', '.join(CHOICES)}, or unset it.")
        choice = "require" if required and choice == "auto" else choice
        self.mode: SandboxMode | None = None
        by_kernel: list[SandboxMode] = ["overlay", "landlock"]
        modes: dict[str, list[SandboxMode]] = {"auto": list(MODES), "require": by_kernel}
        self._choice, self._modes = choice, modes[choice] if choice in modes else [mode for mode in MODES if mode == choice]
        self._here = os.path.realpath(Path.cwd())
        home = os.path.realpath(os.path.expanduser("~"))
        self._run_in = sorted({self._here, *([] if program is None else [os.path.realpath(program.parent)])})
        self._needed = {*self._run_in, *([home] if home != "/" and os.access(home, os.W_OK) else [])}
        self._caches = cache_folders(os.environ, self._here)
        self._hidden = sorted({name for path in hidden for name in (path, *other_mounts(path))})
        self._sealed = sealed
        shared = {*self._caches, _temporary(), *(filter(os.path.isdir, SCRATCH_PLACES) if sealed else ())}
        self._rules = dict.fromkeys(APART, False) | dict.fromkeys(shared, sealed) | dict.fromkeys(self._needed, True)
        self._unprotected: list[str] = []
        self._scratch: Path | None = None
        self._around: str | None = None  # a folder that cannot be protected, as the scratch folder lies in it
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._make_caches()
        if self._modes != ["off"]:
            _remove_leftovers()
            self._scratch = self._find_scratch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def _make_caches(self) -> None:
        """Create the caches that do not exist yet, as the program would: one created in an overlay would be discarded."""
        rare = IN_HOME[1 if importlib.util.find_spec("triton") is None else 2 :]
        unlikely = {os.path.join(os.path.expanduser("~"), name) for name in rare} | {site.getusersitepackages()}
        for folder in sorted(self._caches - unlikely):
            with contextlib.suppress(OSError):
                _cache_files.make_cache_folder(Path(folder))

    def _find_scratch(self) -> Path | None:
        """A new folder outside the folders that must be protected; None if there is no such place."""
        places = [os.path.realpath(place) for place in (_temporary(), *SCRATCH_PLACES)]
        if self._sealed:  # /tmp is protected, too, if the scratch folder is elsewhere
            places.sort(key=lambda place: is_below(place, _temporary()))
        usable = [
            place for place in places if os.access(place, os.W_OK) and not any(is_below(place, folder) for folder in self._needed)
        ]
        if not usable:
            return None
        # TMPDIR may lie in a folder with other files, which cannot be protected then: /tmp is better where it has room.
        others = _other_places()
        apart = [candidate for candidate in usable if not any(is_below(candidate, other) for other in others)]
        room = min(shutil.disk_usage(usable[0]).free * 0.9, ENOUGH_SCRATCH)  # others write to the same disk meanwhile
        place = next((candidate for candidate in apart if shutil.disk_usage(candidate).free >= room), usable[0])
        while True:
            folder = Path(place, f"{SCRATCH}{secrets.token_hex(8)}")
            _disk.disk.mkdir(folder, 0o700)
            # Another diagnosis that starts now removes folders of this name that nobody holds: perhaps this one, before it is held.
            with contextlib.suppress(FileNotFoundError):
                held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                self._open.callback(os.close, held)
                fcntl.flock(held, fcntl.LOCK_SH)  # until this process ends: then the folder is a leftover
                if os.path.samestat(os.fstat(held), os.stat(folder)):
                    self._open.callback(_remove_scratch, folder)
                    return folder

    def plan(self, descriptor: int) -> str:
        """The plan for a process that answers on this file descriptor, as JSON."""
        modes = [mode for mode in self._modes if mode == "off" or self._scratch is not None]
        rules = dict(self._rules)
        if self._scratch is not None:
            for path, writable in _other_places().items():
                if not is_below(str(self._scratch), path):
                    rules.setdefault(path, writable)
                elif writable:
                    self._around = path
        private = []
        if self._scratch is not None and self._sealed:
            place = str(self._scratch.parent)
            rules[place] = False
            private = [] if is_above(place, [*self._needed, _temporary()]) else [place]
        scratch = None if self._scratch is None else str(self._scratch)
        made = SandboxPlan(
            modes=modes, scratch=scratch, rules=rules, needed=sorted(self._needed), mirrored=self._run_in, hidden=self._hidden,
            sealed=self._sealed, private=private, socket=descriptor,
        )  # fmt: skip
        return msgspec.json.encode(made).decode()

    def wait_until_entered(self, answers: socket.socket) -> None:
        """Wait until the process has entered the sandbox. Raises `TrainError` if it could not enter."""
        data = answers.recv(1 << 16)
        if not data:
            return  # it has ended; its exit code says why
        entered = msgspec.json.decode(data, type=Entered)
        if entered.mode is None:
            raise TrainError(
                f"your files cannot be protected on this machine: {entered.error}. Run a copy of the program in a copy of its folder, "
                f"with --sandbox off (or {VARIABLE}=off)."
            )
        self.mode, self._unprotected = entered.mode, entered.unprotected
        if entered.mode == "overlay" and self._around is not None:
            self._unprotected = [*self._unprotected, self._around]
        if self._unprotected and self._choice == "require":
            raise TrainError(f"{_first_few(self._unprotected)} cannot be protected by an overlay. Use --sandbox landlock.")
        if entered.mode == "off" and self._choice == "auto":
            print(
                f"stoker: your files are not protected, as this machine permits neither overlays nor Landlock ({entered.error}): the "
                "program runs as by python itself. --sandbox require refuses instead.",
                file=sys.stderr,
            )
        elif self._unprotected:
            print(f"stoker: {self._exposed()} --sandbox landlock protects them, too.", file=sys.stderr)
        answers.sendall(b".")  # the program may begin

    def notes(self) -> list[str]:
        """Return notes for the user, after the program has ended."""
        notes = [NOTES[self.mode or "off"]]
        return [*notes, self._exposed()] if self._unprotected else notes

    def _exposed(self) -> str:
        return f"No overlay could be mounted at {_first_few(self._unprotected)}: files there are not protected."


def enter(plan_json: str) -> None:
    """Enter the sandbox with this process, which must have no threads yet, and all that it starts."""
    plan = msgspec.json.decode(plan_json, type=SandboxPlan)
    with socket.socket(fileno=plan.socket) as answers:
        reasons: list[str] = []
        for mode in plan.modes:
            try:
                unprotected = _enter_mode(mode, plan)
            except OSError as error:
                reasons.append(f"{mode}: {error.strerror or error}")
                continue
            overlay.end_with_parent()  # before the answer: a parent that ends after it ends this process, too
            answer = Entered(mode=mode, unprotected=unprotected, error="; ".join(reasons))
            with contextlib.suppress(ConnectionError):
                answers.sendall(msgspec.json.encode(answer))
                if answers.recv(1):
                    return
            raise SystemExit(1)  # whoever started this process has ended
        answers.sendall(msgspec.json.encode(Entered(error="; ".join(reasons) or "there is no place for a scratch folder")))
    raise SystemExit(1)


def _enter_mode(mode: SandboxMode, plan: SandboxPlan) -> list[str]:
    """Enter in this mode; returns folders that are not protected. Raises `OSError` if the machine does not permit it."""
    if mode == "overlay":
        _try_overlay(plan)
        return _overlay(Path(str(plan.scratch)), plan)
    if mode == "landlock":
        scratch = Path(str(plan.scratch))
        # A rule covers all that is below a folder, so one around the user's files is left out.
        writable = {path for path, protected in plan.rules.items() if not protected} | {"/dev"}
        around = {path for path in writable if any(is_below(folder, path) for folder in plan.needed)}
        if _temporary() in around or plan.sealed:
            _disk.disk.mkdir(scratch / "tmp", 0o700)
            os.environ["TMPDIR"] = str(scratch / "tmp")
        landlock.enter(scratch, plan.mirrored, writable - around - {"/sys", "/run", *plan.private}, hidden=plan.hidden)
    return []


def _overlay(scratch: Path, plan: SandboxPlan) -> list[str]:
    return overlay.enter(
        scratch, plan.rules, set(plan.needed), hidden=plan.hidden, private=plan.private, confined=plan.sealed or bool(plan.hidden)
    )


def _try_overlay(plan: SandboxPlan) -> None:
    """Raise `OSError` unless a fork can enter the overlay: a process that fails halfway could not leave it again."""
    scratch = Path(str(plan.scratch), "try")
    _disk.disk.mkdir(scratch, 0o700)
    child = os.fork()
    if child == 0:
        number = 1
        try:
            _overlay(scratch, plan)
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
    places = {f"/{name}": True for name in os.listdir("/") if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")}
    places |= {mount.path: mount.writable for mount in kernel.mounts() if mount.path != "/"}
    apart = (*SYSTEM, _temporary(), *SCRATCH_PLACES)
    return {path: writable for path, writable in places.items() if not any(is_below(path, place) for place in apart)}


def _remove_leftovers() -> None:
    """Remove scratch folders of diagnoses that were killed: folders of this user and of this name that no process holds."""
    for place in {_temporary(), *SCRATCH_PLACES}:
        for folder in Path(place).glob(SCRATCH + "[0-9a-f]" * 16):
            with contextlib.suppress(OSError):
                held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if os.fstat(held).st_uid == os.geteuid():
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        files.remove_tree(folder)
                finally:
                    os.close(held)


def _remove_scratch(folder: Path) -> None:
    """Remove a scratch folder, to which processes that the program has started may write for a moment after its end."""
    until = now_ns() + int(PATIENCE_SECONDS * 1e9)
    while folder.exists():
        try:
            files.remove_tree(folder)
        except OSError:
            if now_ns() > until:
                return  # the next diagnosis removes it
            time.sleep(0.05)


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(os.fsencode(name).decode(errors="replace") for name in names[:MAX_NAMED]) + more
