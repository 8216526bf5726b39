"""`stoker watch`: run a script to its end, or follow a run, and name the cause when it becomes slower."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker._text import printable
from stoker.cli import command as base
from stoker.cli.brief import BriefCommand, print_result
from stoker.cli.launchers import ScriptCall, launch
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.watch.cause import Slowdown

POLL_SECONDS = 0.5
TARGET = base.PathType(needs="the file of a script, or the folder of a run")


@click.command("watch", cls=BriefCommand, doing="watching {target}", runs_script=True)
@click.argument("target", type=TARGET, metavar="SCRIPT.py|FOLDER")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@base.module_option
@click.option("--once", is_flag=True, help="With a folder: show what was found so far, and do not wait for more.")
@base.json_option
@click.pass_context
def command(
    ctx: click.Context, target: str, arguments: tuple[str, ...], is_module: bool, once: bool, as_json: bool
) -> None:  # fmt: skip
    """Run SCRIPT.py to its end and report on stderr when its steps become slower, and why; or follow the run in FOLDER.

    Causes are the loader, the step itself, the clock of GPU or CPU, a neighbour (another program), memory growth, or a rank. A slowdown
    of 10 % is found within 100 steps, if step times scatter by at most 5 %. The script keeps its output, unless -q, and
    its exit code. With --json, one document with all slowdowns is printed at the end, and the output of the script goes to stderr.

    \b
    stoker watch train.py --epochs 10
    stoker watch -m package.train
    stoker watch torchrun --nproc-per-node 2 train.py
    stoker watch runs/first
    """
    if Path(target).is_dir() and not is_module:
        if arguments:
            raise OptionError(f"{arguments[0]!r} is not expected: {target} is a folder, not a script.", path=target)
        _follow(Path(target), once=once, as_json=as_json)
        return
    if once:
        raise OptionError(f"--once is for the folder of a run, but {target} is not a folder.", parameter="once")
    target, arguments, is_module = launch(ctx, ScriptCall(target, arguments, is_module))
    from stoker.watch.script import run_script

    is_first = not int(os.environ.get("RANK") or 0)  # the first of several processes reports for all

    slowdowns: list[Slowdown] = []

    def report(line: str, slowdown: Slowdown | None) -> None:
        slowdowns.extend([slowdown] if slowdown is not None else [])
        if is_first:
            click.echo(f"stoker: {printable(line)}", err=True)

    try:
        with base.script_output(sys.stderr if as_json else None):
            run_script(target, arguments, module=is_module, report=report)
    finally:
        if as_json and is_first:
            _print_json(slowdowns)


def _print_json(slowdowns: Sequence[Slowdown]) -> None:
    print_result({"slowdowns": [slowdown.as_dict() for slowdown in slowdowns]})


def _follow(folder: Path, *, once: bool, as_json: bool) -> None:
    """Print the slowdowns of a run, and those to come until it ends."""
    from stoker._disk import is_locked
    from stoker.train.run import NAME, read_record, read_slowdowns

    if not (folder / NAME).exists():
        raise OptionError(f"{folder} is not the folder of a run: it has no {NAME}.", path=folder)
    read_record(folder)  # refuses a damaged one
    shown = 0
    while True:
        goes_on = not once and is_locked(folder)  # read first: what a run writes at its end is read below
        found = read_slowdowns(folder)
        for slowdown in found[shown:] if not as_json else ():
            click.echo(printable(str(slowdown)))
        shown = len(found)
        if not goes_on:
            break
        time.sleep(POLL_SECONDS)
    if as_json:
        _print_json(found)
    elif not shown:
        click.echo(f"{printable(str(folder))}: no slowdown was found.")
