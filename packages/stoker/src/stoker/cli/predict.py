"""`stoker predict`: predictions of a trained run for new data. `stoker embed`: representations. `stoker forecast`: by a Time-MoE."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli import command as base
from stoker.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from stoker.experiment.predict import TrainedRun
    from stoker_recipes.time_moe.data import Corpus
    from stoker_recipes.time_moe.predicting import LoadedModel


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
@click.option("--horizon", type=int, metavar="N", help="Steps to forecast; for runs of Time-MoE. [default: 96]")
@click.option("--stride", type=int, metavar="N", help="With --which all: steps between two windows. [default: as in training]")
@base.choice_option("--short", choices=["error", "skip"], help="What to do with series that are shorter than the model's window.")
@click.option(
    "--pack",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of `stoker pack` for raw files, such as sort=true, delimiter=';' or sql=STATEMENT. May be repeated.",
)
@click.option("--batch-size", type=int, default=1024, show_default=True, metavar="N", help="Windows at once.")
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@base.overwrite_option("Replace the file of --out.")
@base.device_option
@base.json_option
def command(
    run: str, data: tuple[str, ...], out: str | None, assignments: tuple[str, ...], latest: bool, overwrite: bool, device: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict with RUN (the folder of a run) for new data, in the units of the data.

    Raw files are packed like the store of the run: same statement, key, time column and frequency, only the columns that the model
    reads; --pack sql=none is for files that have the columns of the store. Each
    row of the result has the series, the time of the predicted step, the column and the prediction; --json prints an object per line.

    \b
    stoker predict runs/first --data new.csv --out predictions.parquet
    stoker predict runs/first --data new.stoker --which all --out backtest.csv
    stoker predict runs/ett --data ett.stoker --horizon 24
    stoker predict runs/ice --data test.stoker --out submission.csv
    """
    import stoker

    if out is not None:
        base.check_new_file("--out", out, FORMATS, overwrite=overwrite)
    given: Any = data[0] if len(data) == 1 else list(data)
    loaded = stoker.load(run, latest=latest, device=device)
    table = loaded.predict(given, pack_options=_pack_options(assignments, loaded), **options)
    if out is not None:
        from stoker import _disk

        _disk.write_file(Path(out), encode(table, Path(out).suffix.lower()))
    if as_json:
        for row in table.to_pylist():
            click.echo(json.dumps(row, default=str))
        return
    if out is None:
        _show(table)
    series, what = len(table.column(0).unique()), "events" if "event_id" in table.column_names else "series"
    click.echo(f"{len(table):,} predictions for {series:,} {what} by {printable(run)}, step {loaded.step:,}")
    if out is not None:
        base.report(f"written: {out}")


def _pack_options(assignments: tuple[str, ...], loaded: TrainedRun) -> dict[str, Any]:
    """Return the values of `--pack`, over the rules for times of the training data."""
    from stoker.store.pack.options import Time

    time = loaded.pack_options.get("time")
    return base.pack_arguments(dict(map(_assignment, assignments)), time=time if isinstance(time, Time) else None)


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


@click.command("embed", cls=base.Command, doing="computing representations of {data} by {run}", writes="out")
@click.argument("run", type=base.PATH)
@click.argument("out", type=base.PATH)
@click.option("--data", required=True, type=base.TABLE, metavar="DATA", help="Series: .tsv (UCR), .ts or .arff (UEA), or a store.")
@base.overwrite_option("Replace an existing OUT.")
@base.json_option
def embed_command(run: str, out: str, data: str, overwrite: bool, as_json: bool) -> None:
    """Write the representations of series by RUN, a run of `stoker train timehut`, to OUT (.npy): one row per series, float32.

    \b
    stoker embed runs/Chinatown embeddings.npy --data new.tsv
    """
    from stoker import _disk
    from stoker_recipes.timehut import load_encoder, read_series

    path = base.check_new_file("OUT", out, (".npy",), overwrite=overwrite)
    found = load_encoder(run)(read_series(data).values)
    _disk.write_file(path, _disk.npy_bytes(found))
    if as_json:
        click.echo(json.dumps({"path": out, "series": len(found), "values": found.shape[1]}))
        return
    click.echo(f"{len(found):,} series -> {found.shape[1]:,} values each")
    base.report(f"written: {out}")


@click.command("forecast", cls=base.Command, doing="forecasting {data} by {run}")
@click.argument("run", type=base.PATH)
@click.option(
    "--data",
    required=True,
    type=base.TABLE,
    metavar="DATA",
    help="A store, a tree of Time-MoE data (binary folders, .jsonl, .json, .npy), or a table such as .csv.",
)
@click.option("--series", metavar="NAME", help="Name of the series, the end of its name, or its number. [default: the only one]")
@click.option("--horizon", type=int, default=96, show_default=True, metavar="N", help="Points to forecast.")
@click.option(
    "--context",
    type=int,
    metavar="N",
    help="Points of the context. [default: as many as the model takes; with --score at most 512]",
)
@click.option("--at", type=int, metavar="STEP", help="Forecast from this step, without later points. [default: the end]")
@click.option(
    "--score",
    is_flag=True,
    help="MSE and MAE over the last 20 % of all series (or of --series), scaled by their first 70 %, beside repeating "
    "the last point and seasonal naive forecasts: periods of 24, of 168, and by autocorrelation.",
)
@click.option("--stride", type=int, metavar="N", help="With --score: steps between two forecasts. [default: the horizon]")
@base.plot_option
@click.option("--out", "csv_path", type=base.PATH, metavar="FILE", help="Write the forecast: .csv.")
@base.overwrite_option("Replace the file of --out.")
@base.device_option
@base.json_option
def forecast_command(
    run: str, data: str, series: str | None, horizon: int, context: int | None, at: int | None, score: bool, stride: int | None,
    plot: str | None, csv_path: str | None, overwrite: bool, device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Forecast with RUN: the folder of a run of `stoker train time-moe`, or an official checkpoint.

    The context is scaled by its own points, as series are in training. The forecast is in the units of the data.

    \b
    stoker forecast runs/ett --data ett.stoker --series HUFL --horizon 96 --plot hufl.png
    stoker forecast TimeMoE-50M/ --data ett.stoker --series HUFL --at 17000
    stoker forecast runs/ett --data ett.stoker --horizon 96 --score
    """
    import torch

    from stoker.train.plots import check_plot
    from stoker_recipes.time_moe.data import open_corpus
    from stoker_recipes.time_moe.predicting import load_model

    if plot is not None:
        check_plot(plot)
    if csv_path is not None:
        base.check_new_file("--out", csv_path, (".csv",), overwrite=overwrite)
    for name, given in (("--horizon", horizon), ("--context", context), ("--stride", stride)):
        if given is not None and given < 1:
            raise click.UsageError(f"{name} is {given}; expected an integer from 1.")
    if score and (at is not None or plot or csv_path):
        raise click.UsageError("--score is over many forecasts: leave out --at, --plot and --out.")
    if stride is not None and not score:
        raise click.UsageError("--stride needs --score.")
    corpus = open_corpus(data, report=lambda note: base.announce(f"note: {note}"))
    number = corpus.find(series) if series is not None else None
    if number is None and not score and len(corpus) > 1:
        names = ", ".join(corpus.series_name(i) for i in range(min(len(corpus), 8))) + (" …" if len(corpus) > 8 else "")
        raise OptionError(f"{corpus.name} has {len(corpus):,} series: {names}. Choose one: --series NAME")
    loaded = load_model(run, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if score:
        chosen = corpus if number is None else corpus.only(number)
        _score(loaded, chosen, horizon=horizon, context=context, stride=stride or horizon, as_json=as_json)
    else:
        _forecast(loaded, corpus, number or 0, at, horizon, context, plot=plot, csv_path=csv_path, as_json=as_json)


def _forecast(
    loaded: LoadedModel, corpus: Corpus, number: int, at: int | None, horizon: int, context: int | None, *, plot: str | None,
    csv_path: str | None, as_json: bool,
) -> None:  # fmt: skip
    import numpy as np

    from stoker import _disk
    from stoker_recipes.time_moe import predicting

    values, name = corpus.series(number), corpus.series_name(number)
    end = len(values) if at is None else at
    if not 1 <= end <= len(values):
        raise OptionError(f"--at is {end:,}; expected a step from 1 to {len(values):,}, the points of series {name!r}.")
    known = np.asarray(values[max(0, end - (context or end)) : end], dtype=np.float64)
    found = predicting.forecast(loaded, known[None], horizon)[0]
    came = np.asarray(values[end : end + horizon], dtype=np.float64)
    # Steps after the end of the series are unknown like missing ones.
    actual = np.concatenate([came, np.full(horizon - len(came), np.nan)]) if np.isfinite(came).any() else None
    if csv_path is not None:
        _disk.write_file(Path(csv_path), predicting.as_csv(found, actual, first=end).encode(), durable=False)
    if plot is not None:
        predicting.plot_forecast(plot, np.asarray(values[:end], dtype=np.float64), found, actual, title=name)
    mse, mae, count = (0.0, 0.0, 0) if actual is None else predicting.errors_of(found, actual)
    if as_json:
        fields: dict[str, Any] = {"series": name, "model": loaded.source, "from": end, "horizon": horizon}
        fields |= {"mse": mse, "mae": mae, "known": count} if count else {}
        click.echo(predicting.as_json(found, actual, **fields))
        return
    _show_forecast(f"{printable(name)} by {printable(loaded.source)}", end, found, actual)
    if count:
        partly = f", over the {count:,} known points" if count < horizon else ""
        click.echo(f"MSE {mse:.6g}, MAE {mae:.6g} in the units of the series{partly}")
    for path in (plot, csv_path):
        if path is not None:
            base.report(f"written: {path}")


def _show_forecast(title: str, end: int, found: Any, actual: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    columns = {"step": [f"{end + i:,}" for i in range(len(found))], "forecast": [f"{value:.6g}" for value in found]}
    if actual is not None:
        columns["actual"] = [f"{value:.6g}" if math.isfinite(value) else "" for value in actual]
    table = base.new_table()
    for header in columns:
        table.add_column(header, justify="right")
    rows = list(zip(*columns.values(), strict=True))
    half = SHOWN_ROWS // 2
    for row in rows if len(rows) <= SHOWN_ROWS else [*rows[:half], ("…",) * len(columns), *rows[-half:]]:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(Text(title), soft_wrap=True)
    console.print(table)


def _score(loaded: LoadedModel, corpus: Corpus, *, horizon: int, context: int | None, stride: int, as_json: bool) -> None:
    from rich.console import Console

    from stoker_recipes.time_moe.predicting import evaluate

    context = context or max(1, min(loaded.length, 512, loaded.model.size.max_position - horizon))
    with base.bar("windows") as show:

        def scored(done: int, total: int) -> None:
            show("scoring", done / total, done)

        score = evaluate(loaded, corpus, context=context, horizon=horizon, stride=stride, report=scored)
    if as_json:
        click.echo(json.dumps({"model": loaded.source, "context": context, "horizon": horizon, **asdict(score)}))
        return
    table = base.new_table()
    table.add_column(f"{score.windows:,} windows, {context} -> {horizon}", no_wrap=True)
    for title in ("MSE", "MAE"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row(printable(loaded.source), f"{score.mse:.4f}", f"{score.mae:.4f}")
    for one in score.baselines:
        numbers = ["-", "-"] if one.mse is None or one.mae is None else [f"{one.mse:.4f}", f"{one.mae:.4f}"]
        table.add_row(f"naive: {one.name}", *numbers)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "Series are scaled by the mean and deviation of their first 70 %, targets are in their last 20 %.", soft_wrap=True
    )
    best = score.best_baseline
    if best.mse is not None and score.mse >= best.mse:
        console.print(f"The model is not better than a naive forecast ({best.name}).", soft_wrap=True)
