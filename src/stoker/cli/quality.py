"""`stoker quality`: how good synthetic data are, in a table and an HTML report."""

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
    "--holdout", type=base.TABLE, metavar="FILE", help="Real data that the model has not seen. Makes the search for copies sharper."
)
@click.option("--context", type=base.TABLE, metavar="FILE", help="One row per subject of REAL.")
@click.option("--synthetic-context", type=base.TABLE, metavar="FILE", help="One row per subject of SYNTHETIC.")
@click.option("--holdout-context", type=base.TABLE, metavar="FILE", help="One row per subject of the holdout.")
@click.option("--context-key", metavar="COLUMN", help="The key of the contexts. [default: --key]")
@click.option("--time", metavar="COLUMN", help="The column of times. [default: the first of a time type]")
@base.seed_option(0)
@click.option("--max-rows", type=int, default=5000, show_default=True, help="Records per table for classifiers and distances.")
@click.option("--report", type=base.PATH, metavar="FILE", help="Write an HTML report.")
@base.json_option
def command(real: str, synthetic: str, report: str | None, as_json: bool, **options: Any) -> None:
    """Compare SYNTHETIC data with REAL data: every measure with the noise of two real samples, and a verdict.

    \b
    stoker quality real.parquet synthetic.parquet --key user_id --report quality.html
    """

    from stoker.recipes.tabular import quality
    from stoker.recipes.tabular.quality_report import check_report_path

    if report is not None:
        check_report_path(Path(report))
    found = quality(real, synthetic, **options)
    if report is not None:
        found.to_html(report, title=f"{Path(synthetic).name} against {Path(real).name}")
        base.announce(f"the report is {report}")
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    table = base.new_table()
    table.add_column("measure")
    for name in ("score", "two real samples", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for one in found.measures:
        ratio = f"{one.ratio:.1f}x" if one.ratio < 1e6 else "-"
        table.add_row(one.title, f"{one.score:.4f}", f"{one.noise:.4f}", ratio, one.verdict)
    from rich.console import Console

    Console().print(table)
    accuracy = found.accuracy.overall
    click.echo(f"accuracy {accuracy.value:.1%} (a real sample: {accuracy.maximum:.1%}); verdict: {found.verdict}")
