"""`stoker quality`: how good synthetic data are, in a table and an HTML report."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stoker._text import printable
from stoker.cli.main import PATH, new_table
from stoker.errors import OptionError


@click.command("quality", short_help="Report how good synthetic data are.")
@click.argument("real", type=PATH)
@click.argument("synthetic", type=PATH)
@click.option("--key", metavar="COLUMN", help="The column of subjects (default: each row is a subject).")
@click.option(
    "--holdout", type=PATH, metavar="FILE", help="Real data that the model has not seen. Makes the search for copies sharper."
)
@click.option("--context", type=PATH, metavar="FILE", help="One row per subject of REAL.")
@click.option("--synthetic-context", type=PATH, metavar="FILE", help="One row per subject of SYNTHETIC.")
@click.option("--holdout-context", type=PATH, metavar="FILE", help="One row per subject of the holdout.")
@click.option("--context-key", metavar="COLUMN", help="The key of the contexts (default: --key).")
@click.option("--time", metavar="COLUMN", help="The column of times (default: the first of a time type).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random choices.")
@click.option("--max-rows", type=int, default=5000, show_default=True, help="Records per table for classifiers and distances.")
@click.option("--report", type=PATH, metavar="FILE", help="Write an HTML report.")
@click.option("--json", "json_path", type=PATH, metavar="FILE", help="Write all numbers as JSON.")
def command(
    real: str,
    synthetic: str,
    key: str | None,
    holdout: str | None,
    context: str | None,
    synthetic_context: str | None,
    holdout_context: str | None,
    context_key: str | None,
    time: str | None,
    seed: int,
    max_rows: int,
    report: str | None,
    json_path: str | None,
) -> None:
    """Compare SYNTHETIC data with REAL data: every measure with the noise of two real samples, and a verdict.

    \b
    stoker quality real.parquet synthetic.parquet --key user_id --report quality.html
    """

    from stoker import _disk
    from stoker.recipes.tabular import quality
    from stoker.recipes.tabular.quality_report import check_report_path

    if report is not None:
        check_report_path(Path(report))
    if json_path is not None and not Path(json_path).absolute().parent.is_dir():
        raise OptionError(f"{json_path} cannot be written: there is no folder {Path(json_path).parent}. Create it first.")
    found = quality(
        real,
        synthetic,
        key=key,
        holdout=holdout,
        context=context,
        synthetic_context=synthetic_context,
        holdout_context=holdout_context,
        context_key=context_key,
        time=time,
        seed=seed,
        max_rows=max_rows,
    )
    table = new_table()
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
    if report is not None:
        found.to_html(report, title=f"{Path(synthetic).name} against {Path(real).name}")
        click.echo(f"written: {printable(report)}")
    if json_path is not None:
        _disk.write_file(Path(json_path), (json.dumps(found.to_dict(), indent=1) + "\n").encode())
        click.echo(f"written: {printable(json_path)}")
