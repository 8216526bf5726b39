"""`stoker predict`: predictions of a trained run for new data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli import command as base

if TYPE_CHECKING:
    import pyarrow as pa

    from stoker.experiment.predict import TrainedRun

FORMATS = (".parquet", ".csv", ".arrow", ".feather")
SHOWN_ROWS = 12


@click.command("predict", cls=base.Command, doing="predicting {data} by {run}")
@click.argument("run", type=base.PATH)
@click.option(
    "--data", required=True, multiple=True, type=base.TABLE, metavar="DATA", help="A store, or files that `stoker pack` reads."
)
@click.option("--out", type=base.PATH, metavar="FILE", help="Write the table: .parquet, .csv, .arrow or .feather.")
@base.choice_option(
    "--which", choices=["last", "all"], help="last: once per series, from its last steps. all: from every window of the run's view."
)
@click.option("--horizon", type=int, metavar="N", help="Steps to forecast; for runs of recipes that forecast any number.")
@click.option("--stride", type=int, metavar="N", help="With --which all: steps between two windows. [default: as in training]")
@base.choice_option("--short", choices=["error", "skip"], help="What to do with series that are shorter than the model's window.")
@base.pack_option
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@base.overwrite_option("Replace the file of --out.")
@base.device_option
@base.json_option
def command(
    run: str, data: tuple[str, ...], out: str | None, pack_options: tuple[str, ...], latest: bool, overwrite: bool, device: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict with RUN (the folder of a run) for new data, in the units of the data.

    Raw files are packed like the store of the run: same statement, key, time column and frequency, only the columns that the model
    reads; --pack sql=none is for files that have the columns of the store. Each
    row of the result has the series, the time of the predicted step, the column and the prediction.

    \b
    stoker predict runs/first --data new.csv --out predictions.parquet
    stoker predict runs/first --data new.stoker --which all --out backtest.csv
    stoker predict runs/ett --data ett.stoker --horizon 24
    """
    import stoker

    if out is not None:
        base.check_new_file("--out", out, FORMATS, overwrite=overwrite)
    options_of_pack = base.read_pack_options(pack_options)
    given: Any = data[0] if len(data) == 1 else list(data)
    loaded = stoker.load(run, latest=latest, device=device)
    table = loaded.predict(given, pack_options=_over_rules(options_of_pack, loaded), **options)
    if out is not None:
        from stoker import _disk

        _disk.write_file(Path(out), encode(table, Path(out).suffix.lower()))
    if as_json:
        base.print_json({"run": run, "step": loaded.step, "predictions": table.to_pylist()})
        return
    if out is None:
        _show(table)
    series, what = len(table.column(0).unique()), "events" if "event_id" in table.column_names else "series"
    click.echo(f"{len(table):,} predictions for {series:,} {what} by {printable(run)}, step {loaded.step:,}")
    if out is not None:
        base.report(f"written: {out}")


def _over_rules(options: dict[str, Any], loaded: TrainedRun) -> dict[str, Any]:
    """Return options of a pack, over the rules for times of the training data."""
    from stoker.store.pack.options import Time

    time = loaded.pack_options.get("time")
    return base.pack_arguments(options, time=time if isinstance(time, Time) else None)


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

    shown = base.new_table()
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
