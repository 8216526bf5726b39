"""`stoker predict`: predictions of a trained run for new data."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker import extend
from stoker._text import printable
from stoker.cli import command as base
from stoker.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from stoker.experiment.backtest import Backtest
    from stoker.experiment.predict import TrainedRun
    from stoker.store.store import Store

FORMATS = (".parquet", ".csv", ".arrow", ".feather")
SHOWN_ROWS = 12


@click.command("predict", cls=base.Command, doing="predicting {data} by {run}")
@click.argument("run", type=base.PATH)
@click.option(
    "--data", required=True, multiple=True, type=base.TABLE, metavar="DATA", help="A store, or files that `stoker pack` reads."
)
@click.option("--out", type=base.PATH, metavar="FILE", help="Write the table: .parquet, .csv, .arrow or .feather.")
@click.option("--plot", type=base.PATH, metavar="FOLDER", help="Draw a plot per series into a new folder.")
@click.option(
    "--backtest", type=click.IntRange(min=1), metavar="N", help="Forecast from N earlier steps of each series, and compare."
)
@base.model_option
@base.choice_option(
    "--which", choices=["last", "all"], help="last: once per series, from its last steps. all: from every window of the run's view."
)
@click.option("--horizon", type=int, metavar="N", help="Steps to forecast; for runs of recipes that forecast any number.")
@base.choice_option("--short", choices=["error", "skip"], help="What to do with series that are shorter than the model's window.")
@base.pack_option
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@base.overwrite_option("Replace the file of --out, and the folder of --plot.")
@base.device_option
@base.json_option
def command(
    run: str, data: tuple[str, ...], out: str | None, plot: str | None, backtest: int | None, pack_options: tuple[str, ...],
    latest: bool, overwrite: bool, device: str | None, as_json: bool, short: Any, model: str | None, **options: Any,
) -> None:  # fmt: skip
    """Predict with RUN (the folder of a run) for new data, in the units of the data.

    Raw files are packed like the store of the run: same statement, key, time column and frequency, only the columns that the model
    reads; --pack sql=none is for files that have the columns of the store. Each row of the result has the series, the time of the
    predicted step, the column and the prediction. Where the run has columns that are known in advance (data.known), the data ends with
    the steps to predict, with empty targets.

    --backtest 8 forecasts the last 8 horizons of each series one after the other, and prints the errors per step ahead beside those of a
    seasonal naive forecast.

    \b
    stoker predict runs/first --data new.csv --out predictions.parquet
    stoker predict runs/first --data new.csv --backtest 8 --plot plots/
    stoker predict runs/first --data new.stoker --which all --out all.csv
    stoker predict runs/mine --model model.py:make --data new.stoker
    """
    import stoker

    target = None if out is None else base.check_new_file("--out", out, FORMATS, overwrite=overwrite)
    if plot is not None:
        _check_new_folder(Path(plot), overwrite=overwrite)
    if backtest is not None and (options["which"] != "last" or options["horizon"]):
        raise click.UsageError("--backtest chooses the windows itself: leave out --which and --horizon.")
    options_of_pack = base.read_pack_options(pack_options)
    if model is not None:
        if backtest is not None or plot is not None or options_of_pack or len(data) > 1 or options["horizon"]:
            raise click.UsageError("--model predicts every sample of one store: of the other options it takes --out and --json.")
        step, table = _predict_own(run, model, data[0], latest=latest, device=device)
        _finish(run, step, table, out=out, target=target, as_json=as_json)
        if not as_json:
            base.report(printable(f"next: stoker export {run} model.pt2 --model {model} --data {data[0]}"))
        return
    source: Any = data[0] if len(data) == 1 else list(data)
    loaded = stoker.load(run, latest=latest, device=device)
    with loaded.opened(source, _over_rules(options_of_pack, loaded)) as opened:
        tested = None if backtest is None else loaded.backtest(opened, windows=backtest, short=short)
        table = loaded.predict(opened, short=short, **options) if tested is None else tested.table
        if plot is not None:
            _check_plotted(opened, table)
        _finish(run, loaded.step, table, out=out, target=target, as_json=as_json, tested=tested)
        if plot is not None:  # last: a stop while many plots are drawn loses no result
            _plot(Path(plot), opened, table)
    if as_json:
        return
    can_test = tested is None and "ahead" in table.column_names
    recipe = extend.recipe_of_run(Path(run))
    more = (
        f"stoker export {run} model.pt2" if recipe is None or "export" in extend.recipe(recipe).commands else f"stoker live {run}"
    )
    if can_test:
        more = f"stoker predict {run} --data {base.shown_path(data[0])} --backtest 8"
    base.report(printable(f"next: {more}"))


def _predict_own(run: str, model: str, data: str, *, latest: bool, device: str | None) -> tuple[int, pa.Table]:
    """Predict with a run of the Python trainer, whose model a function of the user's makes."""
    import stoker
    from stoker.experiment.models import blaming, load_function

    with blaming(model):
        loaded = stoker.load(run, model=load_function(model)(), latest=latest, device=device)
        return loaded.step, loaded.table(stoker.open(data))


def _finish(
    run: str, step: int, table: pa.Table, *, out: str | None, target: Path | None, as_json: bool, tested: Backtest | None = None
) -> None:
    """Write or show predictions, and say how many there are."""
    if out is not None and target is not None:
        from stoker import _disk

        _disk.write_file(target, encode(table, Path(out).suffix.lower()))
    if as_json:
        scores = {} if tested is None else {"season": tested.season, "windows": tested.windows, "metrics": tested.metrics()}
        base.print_json({"run": run, "step": step, **scores, "predictions": table.to_pylist()})
        return
    if tested is not None:
        _show_metrics(tested)
    elif out is None:
        _show(table)
    series, what = len(table.column(0).unique()), "events" if "event_id" in table.column_names else "series"
    click.echo(f"{len(table):,} predictions for {series:,} {what} by {printable(run)}, step {step:,}")
    if out is not None:
        base.report(f"written: {out}")


def _check_new_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder for plots that holds anything else."""
    from stoker.train.plots import check_plot

    check_plot(folder.absolute().parent / "a.png")  # matplotlib, and the folder above
    if os.path.lexists(folder) and not folder.is_dir():
        raise OptionError(f"--plot is {folder}, which is not a folder; expected one for the plots.", parameter="plot", path=folder)
    foreign = sorted(path.name for path in folder.iterdir() if path.suffix != ".png" or not overwrite) if folder.is_dir() else []
    if foreign:
        raise OptionError(
            f"--plot is {folder}, which holds {foreign[0]!r}. Give a new folder, or --overwrite for one with plots (.png) alone.",
            parameter="plot",
            path=folder,
        )


def _check_plotted(store: Any, table: pa.Table) -> None:
    """Refuse to plot predictions that are not forecasts of a store."""
    from stoker.store.store import Store

    if not isinstance(store, Store) or "ahead" not in table.column_names:
        raise OptionError(
            "--plot draws forecasts of a store or of files that are packed, but this run makes others.", parameter="plot"
        )


def _plot(folder: Path, store: Store, table: pa.Table) -> None:
    from stoker.experiment.backtest import plot_series

    series = len(table.column("series").unique())
    base.announce(f"drawing {series:,} plots into {folder} …")
    with base.bar("plots") as show:
        show("drawing", 0.0, 0)
        plot_series(folder, store, table, progress=lambda done, total: show("drawing", done / total, done))
    base.report(f"written: {folder}")


def _show_metrics(tested: Backtest) -> None:
    """Errors per step ahead, in groups where there are many, and over all steps."""
    from rich.console import Console

    horizon = max(row["ahead"] for row in tested.metrics())
    shown = base.new_table()
    for header in ("column", "steps ahead", "MAE", "RMSE", "naive MAE", "naive RMSE", "MAE / naive"):
        shown.add_column(header, justify="left" if header == "column" else "right", no_wrap=True)
    rows = tested.metrics()
    chosen = [row for row in rows if row["ahead"] in {1, horizon, *range(0, horizon, max(1, horizon // SHOWN_ROWS))}]
    for row in chosen:
        ratio = row["mae"] / row["naive_mae"] if row["naive_mae"] else float("nan")
        numbers = [row[name] for name in ("mae", "rmse", "naive_mae", "naive_rmse")] + [ratio]
        cells = [f"{number:.4g}" if number == number else "-" for number in numbers]
        shown.add_row(printable(str(row["column"])), f"{row['ahead']:,}" if row["ahead"] else "all", *cells)
    console = Console(highlight=False)
    console.print(shown)
    console.print(
        f"{tested.windows:,} forecasts per series; the naive forecast repeats the last {tested.season:,} steps", soft_wrap=True
    )


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
