"""`stoker quality`: how good synthetic data are, by mostlyai-qa."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from stoker.cli import command as base


@click.command("quality", cls=base.Command, doing="comparing {synthetic} with {real}")
@click.argument("real", type=base.TABLE)
@click.argument("synthetic", type=base.TABLE)
@base.key_option("key", "The column of subjects. [default: each row is a subject]")
@click.option(
    "--holdout",
    type=base.TABLE,
    metavar="FILE",
    help="Real data that the model has not seen: the reference for classifiers and distances.",
)
@click.option("--context", type=base.TABLE, metavar="FILE", help="One row per subject of REAL.")
@click.option("--synthetic-context", type=base.TABLE, metavar="FILE", help="One row per subject of SYNTHETIC.")
@click.option("--holdout-context", type=base.TABLE, metavar="FILE", help="One row per subject of the holdout.")
@click.option("--context-key", metavar="COLUMN", help="The key of the contexts. [default: --key]")
@base.seed_option(0)
@click.option("--report", type=base.PATH, metavar="FILE", help="Write an HTML report.")
@base.json_option
def command(real: str, synthetic: str, report: str | None, as_json: bool, **options: Any) -> None:
    """Compare SYNTHETIC data with REAL data by mostlyai-qa: accuracy, similarity and distances. Needs stoker[qa].

    \b
    stoker quality real.parquet synthetic.parquet --key user_id --report quality.html
    """

    from stoker_recipes.tabular import quality

    metrics = quality(real, synthetic, report=None if report is None else Path(report), **options)
    if report is not None:
        base.announce(f"the report is {report}")
    if as_json:
        click.echo(json.dumps(metrics))
        return
    table = base.new_table()
    table.add_column("group")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for group, values in metrics.items():
        for name, value in values.items():
            table.add_row(group, name.replace("_", " "), f"{value:.4f}")
    from rich.console import Console

    Console().print(table)
