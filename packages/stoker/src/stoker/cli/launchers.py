"""Scripts that are named with their launcher: `stoker diagnose torchrun --nproc-per-node 2 train.py`.

The launcher starts as the user wrote it, with `-m stoker diagnose` before the script, so the command runs in its worker processes. An
interpreter before the script (`python train.py`) is left out: the command runs in this process, on this interpreter.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from stoker.cli import command as base
from stoker.errors import OptionError

MODULE_FLAG = {"torchrun": "-m", "accelerate": "-m", "deepspeed": "--module"}
"""The option by which each launcher starts a module instead of a script."""
LAUNCHED = "STOKER_LAUNCHED"
"""A variable in the environment of a command that runs in the workers of a launcher."""
INTERPRETER = re.compile(r"(python|pypy)[\d.]*")


class ScriptCall(NamedTuple):
    """A script or module with its arguments."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool


def launch(ctx: click.Context, program: ScriptCall, *, in_workers: bool = True) -> ScriptCall:
    """Return the program that is to run in this process, or replace this process by the launcher that the program names.

    Without `in_workers` the command is for a single process: a launcher is an error that says what to run instead.
    """
    name = Path(program.script).name
    is_interpreter = INTERPRETER.fullmatch(name) is not None
    if program.is_module or not (is_interpreter or name in MODULE_FLAG) or Path(program.script).suffix == ".py":
        return program
    words = [program.script, *program.arguments]
    at = _start_of_script(words)
    if at is None:
        raise OptionError(
            f"{shlex.join(words)} starts no script; expected the name of a script (FILE.py), or -m with that of a module."
        )
    is_module = words[at - 1] in ("-m", "--module")
    if is_interpreter:
        return ScriptCall(words[at], tuple(words[at + 1 :]), is_module)
    if not in_workers:
        words = ["stoker", str(ctx.info_name), *ctx.meta[base.OPTIONS], *(["-m"] if is_module else []), *words[at:]]
        raise OptionError(f"{name} starts several processes, and stoker {ctx.info_name} is for one. Run: {shlex.join(words)}")
    starter = _program(program.script)
    if starter is None:
        alone = shlex.join(["stoker", str(ctx.info_name), *ctx.meta[base.OPTIONS], *(["-m"] if is_module else []), *words[at:]])
        raise OptionError(f"{program.script} is not installed, so it cannot start {words[at]}. In one process: {alone}")
    options = [*ctx.meta[base.OPTIONS], *(["-m"] if is_module else [])]
    before = words[1 : at - 1] if is_module else words[1:at]
    command = [starter, *before, MODULE_FLAG[name], "stoker", str(ctx.info_name), *options, *words[at:]]
    base.announce(f"starting {shlex.join(command)}")
    sys.stdout.flush()
    os.execvpe(command[0], command, {**os.environ, LAUNCHED: "1"})


def words_of_launcher(script: str, arguments: tuple[str, ...]) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the words of the launcher that is named, or none, then the script and its arguments."""
    if Path(script).name not in MODULE_FLAG:
        return (), script, arguments
    words = (script, *arguments)
    at = _start_of_script(words)
    if at is None:
        raise OptionError(f"{shlex.join(words)} starts no script; expected the name of a script (FILE.py).")
    starter = _program(script)
    if starter is None:
        raise OptionError(f"{script} is not installed, so it cannot start {words[at]}.", parameter="script")
    return (starter, *words[1:at]), words[at], words[at + 1 :]


def _program(name: str) -> str | None:
    """Return what starts a launcher: its name, or its path in the folder of this interpreter if no PATH leads there.

    The launcher of this interpreter comes first: its workers import Stoker from the same environment, whether that is activated or not.
    """
    beside = None if Path(name).name != name else shutil.which(name, path=Path(sys.executable).parent)
    by_name = shutil.which(name)
    if beside is None or (by_name is not None and Path(beside).samefile(by_name)):
        return name if by_name is not None else None
    return beside


def _start_of_script(words: Sequence[str]) -> int | None:
    """Return the place of the script or module in the words of a launcher."""
    for at, word in enumerate(words[1:], 1):
        if words[at - 1] in ("-m", "--module") or (word.endswith(".py") and not word.startswith("-")):
            return at
        if word == "-c":
            return None
    return None
