"""`stoker predict`: predictions of a trained run for new data, as a table."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli.main import PATH, new_table
from stoker.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".parquet", ".csv", ".arrow", ".feather")
SHOWN_ROWS = 12


@click.command("predict", short_help="Predict for new data with a trained run.")
@click.argument("run", type=PATH)
@click.option("--data", required=True, multiple=True, type=PATH, metavar="DATA", help="A store, or files that `stoker pack` reads.")
@click.option("--out", type=PATH, metavar="FILE", help="Write the table: .parquet, .csv, .arrow or .feather.")
@click.option(
    "--which",
    type=click.Choice(["last", "all"]),
    default="last",
    show_default=True,
    help="last: once per series, from its last steps. all: from every window of the run's view.",
)
@click.option("--horizon", type=int, metavar="N", help="Steps to forecast; for runs of Time-MoE. [default: 96]")
@click.option("--stride", type=int, metavar="N", help="With --which all: steps between two windows. [default: as in training]")
@click.option(
    "--short",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do with series that are shorter than the model's window.",
)
@click.option(
    "--pack",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of `stoker pack` for raw files, such as sort=true or delimiter=';'. May be repeated.",
)
@click.option("--batch-size", type=int, default=1024, show_default=True, metavar="N", help="Windows at once.")
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@click.option("--overwrite", is_flag=True, help="Replace the file of --out.")
@click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N. [default: a GPU if there is one]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, one object per line.")
def command(
    run: str,
    data: tuple[str, ...],
    out: str | None,
    assignments: tuple[str, ...],
    latest: bool,
    overwrite: bool,
    device: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict with RUN (the folder of a run) for new data, in the units of the data.

    Raw files are packed like the store of the run: same key, time column and frequency, only the columns that the model reads. Each
    row of the result has the series, the time of the predicted step, the column and the prediction.

    \b
    stoker predict runs/first --data new.csv --out predictions.parquet
    stoker predict runs/first --data new.stoker --which all --out backtest.csv
    stoker predict runs/ett --data ett.stoker --horizon 24
    """
    import stoker

    if out is not None:
        _check_out(Path(out), overwrite=overwrite)
    given: Any = data[0] if len(data) == 1 else list(data)
    loaded = stoker.load(run, latest=latest, device=device)
    table = loaded.predict(given, pack_options=dict(map(_assignment, assignments)), **options)
    if out is not None:
        from stoker import _disk

        _disk.write_file(Path(out), encode(table, Path(out).suffix.lower()))
    if as_json:
        for row in table.to_pylist():
            click.echo(json.dumps(row, default=str))
        return
    if out is None:
        _show(table)
    series = len(table["series"].unique())
    click.echo(f"{len(table):,} predictions for {series:,} series by {printable(run)}, step {loaded.step:,}")
    if out is not None:
        click.echo(f"written: {printable(out)}")


def _check_out(path: Path, *, overwrite: bool) -> None:
    if path.suffix.lower() not in FORMATS:
        raise OptionError(f"--out is {path}; expected a name that ends in {', '.join(FORMATS)}.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OptionError(f"{path} is there already. Replace the file (--overwrite), or give another name.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.")


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--pack is {text!r}; expected NAME=VALUE, such as sort=true.")
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    return name, words.get(value.lower(), int(value) if value.isdecimal() else value)


def encode(table: pa.Table, suffix: str) -> bytes:
    """A table as the bytes of a file."""
    import pyarrow as pa

    sink = io.BytesIO()
    if suffix == ".parquet":
        from pyarrow.parquet import ParquetWriter

        with ParquetWriter(sink, table.schema) as writer:
            writer.write(table)
    elif suffix == ".csv":
        from pyarrow.csv import CSVWriter

        with CSVWriter(sink, table.schema) as writer:
            writer.write(table)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write(table)
    return sink.getvalue()


def _show(table: pa.Table) -> None:
    from rich.console import Console

    shown = new_table()
    for name in table.column_names:
        shown.add_column(printable(name), justify="left" if name in ("series", "column") else "right", no_wrap=True)
    half = SHOWN_ROWS // 2
    rows = (
        table.to_pylist() if len(table) <= SHOWN_ROWS else [*table[:half].to_pylist(), {}, *table[len(table) - half :].to_pylist()]
    )
    for row in rows:
        cells = [row.get(name, "…") for name in table.column_names]
        shown.add_row(*(f"{cell:.6g}" if isinstance(cell, float) else printable(str(cell)) for cell in cells))
    Console(highlight=False).print(shown)
