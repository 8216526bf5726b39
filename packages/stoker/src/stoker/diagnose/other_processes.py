"""Processes that the program starts. Training in them cannot be measured: a line says at once what was seen, and what to run instead.

- `os.exec*` replaces the process that is measured, so the diagnosis ends there.
- `torch.multiprocessing.spawn` starts processes that train, so it is refused.
- A fork (`multiprocessing.Process`, `os.fork`) has the hooks of its parent. It ends the diagnosis at its first training step, unless its
  parent trains, too.
- Of another Python program (`subprocess`, `os.system`) or a spawned process it is not known what it does. A line says that it was started;
  if the program ends without a training step, this is the error.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing
import multiprocessing.process
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch.multiprocessing

from stoker._clock import now_ns
from stoker.diagnose.hooks import StepHooks, is_own, own_line, shown

LAUNCHERS = ("python", "torchrun", "accelerate", "deepspeed")
"""Programs that run a Python program: what the name of their file begins with."""
GRACE_SECONDS = 2.0  # how long a fork that trains waits for a training step of its parent
POLL_SECONDS = 0.1


class OtherProcesses:
    """Watches the processes that a program starts.

    `words` are the program, after `-m` if it is a module, and its arguments. `end` ends the diagnosis with an error in the program's own
    process, and `end_in_fork` in a fork.
    """

    def __init__(
        self, words: Sequence[str], hooks: StepHooks, *, end: Callable[[str], NoReturn], end_in_fork: Callable[[str], None]
    ) -> None:
        self.started: str | None = None  # what was started first, and what to do, if it is not known what it does
        self._words = words  # the program and its arguments
        self._program = words[1] if words[0] == "-m" else words[0]
        self._hooks = hooks
        self._end = end
        self._end_in_fork = end_in_fork
        self._pid = os.getpid()
        self._trains = mmap.mmap(-1, 1)  # shared with forks: 1 if this process has made a training step

    def install(self) -> None:
        """Replace the functions that start processes, until this process ends. Call it when the hooks are installed."""
        for name in ("execv", "execve"):  # the others call these
            setattr(os, name, self._watched(getattr(os, name), self._see_exec))
        for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            for name in ("spawn", "start_processes"):
                setattr(owner, name, self._watched(getattr(owner, name), self._see_spawn))
        os.system = self._watched(os.system, lambda command: self._see_command(shlex.split(command), None, command))
        starts = subprocess.Popen.__init__
        subprocess.Popen.__init__ = self._watched(starts, self._see_popen)  # type: ignore[method-assign]
        process: Any = multiprocessing.process.BaseProcess
        process.start = self._watched(process.start, self._see_process)
        os.register_at_fork(after_in_child=self._begin_fork)
        search = self._hooks.on_step

        def first_step() -> None:
            self._trains[0] = 1
            self._hooks.on_step = search
            if search is not None:
                search()

        self._hooks.on_step = first_step

    def _watched(self, original: Callable[..., Any], see: Callable[..., None]) -> Callable[..., Any]:
        """A function that calls `see` before the original, in the process that is measured."""

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if os.getpid() == self._pid:
                with contextlib.suppress(TypeError, ValueError):  # arguments that are wrong, or not understood here
                    see(*args, **options)
            return original(*args, **options)

        return call

    def _see_exec(self, path: Any, words: Iterable[Any], *environment: Any) -> None:
        command = [os.fsdecode(path), *map(os.fsdecode, list(words)[1:])]
        what = f"{self._at()} replaces itself by another program, {_in_words(command)}, which cannot be followed."
        self._end(f"{what} {_to_do(command, None)}")

    def _see_spawn(self, fn: object, args: object = (), nprocs: int = 1, *more: object, **named: object) -> None:
        self._end(
            f"{self._at()} trains in processes started by torch.multiprocessing ({nprocs}), which cannot be measured. Call the function "
            f"with the rank of the environment variable RANK instead, and run: torchrun --nproc-per-node {nprocs} -m "
            + _command(self._words)
        )

    def _see_popen(self, popen: object, args: Any, *more: Any, cwd: Any = None, shell: bool = False, **options: Any) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        command = [os.fsdecode(word) for word in words]
        if shell:
            self._see_command(shlex.split(command[0]), cwd, command[0])
        else:
            self._see_command(command, cwd, _in_words(command))

    def _see_command(self, command: Sequence[str], cwd: Any, text: str) -> None:
        """Another program is started."""
        if diagnosed(command, cwd) is not None:
            self._tell(f"another Python program, {text}", _to_do(command, cwd))

    def _see_process(self, process: Any) -> None:
        """A process is started that may not have the hooks of this one."""
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        code = getattr(getattr(process, "_target", None), "__code__", None)
        if method != "fork" and code is not None and is_own(code.co_filename):
            name = f"{code.co_qualname} ({shown(code.co_filename)}:{code.co_firstlineno})"
            self._tell(f"a process that runs {name}", f"Call {name} in the main process, and run: {_command(self._words)}")

    def _tell(self, what: str, to_do: str) -> None:
        """Say at once what was started, and keep it for the end."""
        at = self._at()
        if self.started is None and not self._trains[0]:
            self.started = f"{at} started {what}, and made no training step itself. {to_do}"
            print(
                f"stoker: {at} starts {what}. If the training is there, {to_do[0].lower()}{to_do[1:]}", file=sys.stderr, flush=True
            )

    def _at(self) -> str:
        """The program, with the line that it is at."""
        line = own_line(sys._getframe(1))
        return f"{self._program} ({line.file}:{line.line})" if line is not None else self._program

    def _begin_fork(self) -> None:
        """A fork has begun; if it trains, the hooks see that."""
        if not self._trains[0]:
            self._hooks.on_step = self._see_step_of_fork

    def _see_step_of_fork(self) -> None:
        """A fork trains. Where its parent does, too, nothing is said."""
        self._hooks.on_step = None
        until = now_ns() + int(GRACE_SECONDS * 1e9)
        while not self._trains[0] and now_ns() < until:
            time.sleep(POLL_SECONDS)
        if not self._trains[0]:
            what = f"{self._at()} trains in a process that it has started, which cannot be measured."
            self._end_in_fork(f"{what} Train in the main process, and run: {_command(self._words)}")


def diagnosed(command: Sequence[str], cwd: Any) -> str | None:
    """The command that diagnoses the Python program which a command runs; None if it runs none of the user's."""
    folder = Path(os.fsdecode(cwd) if cwd is not None else ".")
    at = next((number for number, word in enumerate(command) if Path(word).name.startswith(LAUNCHERS)), None)
    if at is None:
        return None
    words = list(command[at + 1 :])
    for number, word in enumerate(words):
        if word == "-c":
            return None
        if word.endswith(".py") and (folder / word).is_file() and is_own(str(folder / word)):
            return _command([str(folder / word), *words[number + 1 :]])
        if word == "-m" and number + 1 < len(words):
            path = folder / words[number + 1].replace(".", "/")
            if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
                return _command(["-m", *words[number + 1 :]])
    return None


def _command(words: Sequence[str]) -> str:
    """The command that diagnoses a program with its arguments."""
    return shlex.join(["stoker", "diagnose", *words])


def _to_do(command: Sequence[str], cwd: Any) -> str:
    run = diagnosed(command, cwd)
    return f"Run: {run}" if run is not None else "Diagnose the program that trains."


def _in_words(command: Sequence[str]) -> str:
    """A command as it is shown: the interpreter without its folder."""
    return shlex.join([Path(command[0]).name, *command[1:]])
