"""`stoker audit`: run a user's script, find its batches, and report what is wrong with them (diagnose/audit_script.py)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable, printable_lines
from stoker.cli import command as base
from stoker.cli.brief import BriefCommand, print_result
from stoker.cli.launchers import ScriptCall, launch

if TYPE_CHECKING:
    from stoker.audit.auditor import AuditReport

COLORS = {"fault": "bold red", "note": "yellow", "unchecked": "dim", "passed": "green"}


@click.command("audit", cls=BriefCommand, doing="auditing the batches of {script}", runs_script=True)
@click.argument("script", type=base.SCRIPT, metavar="SCRIPT.py[:NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@base.module_option
@click.option("--reference", metavar="NAME", help="All samples: a dataset, or other batches. [default: the dataset of the loader]")
@click.option(
    "--apart-from", metavar="NAME", help="Data that must share no sample with the batches. [default: the validation loaders]"
)
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs to read; 2 compares their order.")
@click.option("--max-batches", type=click.IntRange(min=1), metavar="N", help="Batches to read per epoch. [default: all]")
@base.json_option
@click.pass_context
def command(
    ctx: click.Context, /, script: str, arguments: tuple[str, ...], is_module: bool, reference: str | None, apart_from: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run SCRIPT.py until its training loop is known, and audit what its loader yields, compared with its validation loaders.

    The script cannot change your files meanwhile, and trains a few steps at most. With NAME (a loader, or a function that returns one),
    --reference or --apart-from, only the top level of the script runs, with the name __stoker_check__. Exit code 0: no error was found,
    1: the audit finds an error, 2: it could not be made.

    \b
    stoker audit train.py --epochs 1
    stoker audit -m package.train
    stoker audit --apart-from val_loader --epochs 2 train.py:train_loader
    stoker audit --max-batches 100 train.py:make_loader --config small.yaml
    """
    script, arguments, is_module = launch(ctx, ScriptCall(script, arguments, is_module), in_workers=False)
    from stoker.diagnose.audit_script import audit_script

    path, name = (script, None) if is_module else split_name(script)
    options |= {"name": name, "reference": reference, "apart_from": apart_from}
    shown = {"quiet": base.drops_script_output(), "shows_progress": not base.is_quiet()}
    answer = audit_script(path, arguments, module=is_module, **shown, **options)
    report = answer.report
    if not any((name, reference, apart_from)):
        others = "other loader" if answer.num_others == 1 else "other loaders"
        base.announce(
            f"the training data was compared with {answer.num_others or 'no'} {others} of the script (--apart-from NAME names one)"
        )
    assert report is not None
    if as_json:
        print_result(report.to_dict())
    else:
        _print(report)
        called = printable(shlex.join([*(["-m"] if is_module else []), path, *arguments]))
        base.report(f"next: stoker diagnose {called}" if report.ok else "next: correct the faults, then run the same command")
    if not report.ok:
        raise SystemExit(1)


def split_name(script: str) -> tuple[str, str | None]:
    """Return the path of a script and the name after it, if there is one."""
    before, _, name = script.rpartition(":")
    return (before, name) if before and name.isidentifier() and not Path(script).exists() else (script, None)


def _print(found: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:  # a log or a pipe: one check per line, of any width
        click.echo(printable_lines(str(found)))
        return
    from stoker.audit.auditor import WORDS

    table = Table.grid(padding=(0, 2), pad_edge=False)
    for can_wrap in (False, False, True):
        table.add_column(no_wrap=not can_wrap, overflow="fold")
    for check in found.checks:
        table.add_row(Text(WORDS[check.severity], style=COLORS[check.severity]), Text(check.kind), Text(printable(check.text)))
    console.print(Text(printable(found.headline), style="bold"), Text(printable(found.basis)), "", table, sep="\n")
