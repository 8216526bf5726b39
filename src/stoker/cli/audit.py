"""`stoker audit`: read the batches of a script as its training loop would, and report errors in them."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import click

from stoker._progress import progress
from stoker._text import printable
from stoker.cli.paths import PATH

if TYPE_CHECKING:
    from stoker.auditing.audit import AuditReport

COLORS = {"fault": "bold red", "note": "yellow", "unchecked": "dim", "passed": "green"}


@click.command("audit", short_help="Find errors in the batches of a script.")
@click.argument("script", type=PATH, metavar="SCRIPT.py[:NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@click.option("--reference", metavar="NAME", help="All samples: a dataset, or other batches (default: the dataset of the loader).")
@click.option("--apart-from", metavar="NAME", help="Data that must share no sample with the batches, such as validation data.")
@click.option("--ids", metavar="ENTRY", help="Entry of a batch that holds the index of each sample.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs to read; 2 compares their order.")
@click.option("--max-batches", type=click.IntRange(min=1), metavar="N", help="Batches to read per epoch (default: all).")
@click.option(
    "--reference-limit", type=click.IntRange(min=1), metavar="N", help="Samples of the reference to read (default: a million)."
)
@click.option(
    "--shuffled/--not-shuffled", default=None, help="Whether the order should be shuffled (default: as the loader declares)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    script: str,
    arguments: tuple[str, ...],
    reference: str | None,
    apart_from: str | None,
    ids: str | None,
    epochs: int,
    max_batches: int | None,
    reference_limit: int | None,
    shuffled: bool | None,
    as_json: bool,
) -> None:
    """Run the top level of SCRIPT.py and audit its batches. NAME is a loader, or a function that returns one.

    The script runs with the name __stoker_check__, so code under `if __name__ == "__main__":` does not run. The exit code is
    1 if the audit finds an error.

    \b
    stoker audit train.py
    stoker audit train.py:train_loader --apart-from val_loader --epochs 2
    stoker audit train.py:make_loader --max-batches 100 -- --config small.yaml
    """
    from stoker.auditing.audit import REFERENCE_LIMIT, audit
    from stoker.cli.script import Script

    # Keep the output of the script out of the JSON.
    aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with aside, progress(unit="samples", enabled=not as_json) as show, Script.run(script, arguments) as ran:
        batches = ran.batches()
        found = audit(
            batches,
            reference=ran.data(reference) if reference else None,
            apart_from=ran.data(apart_from) if apart_from else None,
            ids=ids,
            epochs=epochs,
            max_batches=max_batches,
            reference_limit=reference_limit or REFERENCE_LIMIT,
            shuffled=shuffled,
            progress=show,
        )
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        _print(found)
    if not found.ok:
        raise SystemExit(1)


def _print(found: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:  # a log or a pipe: one check per line, of any width
        click.echo("\n".join(printable(line) for line in str(found).split("\n")))
        return
    from stoker.auditing.audit import WORDS

    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in found.checks:
        table.add_row(Text(WORDS[one.severity], style=COLORS[one.severity]), Text(one.kind), Text(printable(one.text)))
    console.print(Text(printable(found.headline), style="bold"))
    console.print(Text(printable(found.basis)))
    console.print()
    console.print(table)
