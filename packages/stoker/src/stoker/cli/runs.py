"""`stoker runs`: the runs of a folder side by side, and plots of their curves."""

from __future__ import annotations

from dataclasses import asdict

import click

from stoker._text import printable
from stoker.cli import command as base


@click.command("runs", cls=base.Command, doing=None)
@click.argument("folder", default="runs", type=base.PATH)
@click.option("--metric", metavar="NAME", help="Metric whose best value is shown. [default: val_loss, or what there is]")
@base.plot_option
@base.overwrite_option("Replace the file of --plot.")
@base.json_option
def command(folder: str, metric: str | None, plot: str | None, overwrite: bool, as_json: bool) -> None:
    """Show the runs below FOLDER (by default: runs): how each ended, its best metric, its speed, and its wait for data.

    \b
    stoker runs runs/
    stoker runs runs/ --metric val_auc --plot runs.svg
    """
    from stoker.train.run import collect, table

    target = None if plot is None else base.check_new_plot(plot, overwrite=overwrite)
    runs = collect(folder, metric=metric)
    if target is not None:
        from stoker.train.plots import plot as draw

        draw(runs, target)
    if as_json:
        base.print_json([asdict(run) for run in runs])
        return
    if not runs:
        click.echo(f"{printable(folder)} has no runs.")
        base.report("next: stoker train CONFIG")
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe is not folded
    console.print(table(runs))
    base.report(printable(f"next: stoker live {folder}"))
    if plot is not None:
        base.report(f"plot: {plot}")
