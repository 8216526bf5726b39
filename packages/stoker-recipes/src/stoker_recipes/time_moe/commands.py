"""What Time-MoE registers with Stoker: `stoker train time-moe`, `stoker time-moe forecast`, export, and predictions of its runs."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stoker.cli.command as base
import stoker.cli.training as shared
from stoker.errors import OptionError
from stoker.extend import Recipe, printable

if TYPE_CHECKING:
    from stoker.experiment import TrainedRun
    from stoker_recipes.time_moe.data import Corpus
    from stoker_recipes.time_moe.predicting import LoadedModel
    from stoker_recipes.time_moe.training import Trained

SETTINGS = "stoker_recipes.time_moe.settings:TimeMoeSettings"
CHECKPOINT = {"config.json", "model.safetensors"}
"""Files of an official checkpoint."""
SHOWN_ROWS = 12
DATA = "A store, a tree of Time-MoE data (binary folders in place, .jsonl, .json, .npy), or a table such as .csv."


@click.command("time-moe", cls=base.Command, doing="training with {data|resume}", short_help="Train a Time-MoE.")
@shared.run_options(SETTINGS, DATA, kind=base.TABLE)
def train(
    data: str | None, overrides: tuple[str, ...], folder: str | None, resume: str | None, device: str | None, as_json: bool
) -> None:
    """Train a Time-MoE on DATA, and write its best weights as an official checkpoint.

    Without `steps` the run is one epoch. `init` starts from the weights of an official checkpoint, `model` is a config.json with other
    sizes. Ctrl-C finishes the step, saves and stops.

    \b
    stoker pack "csv/**/*.csv" ett.stoker --wide
    stoker train time-moe --data ett.stoker --set size=50m --set length=2048
    stoker train time-moe --data time300b/ --set init=TimeMoE-50M/ --set steps=10000
    stoker train --resume runs/ett
    """
    from stoker_recipes.time_moe import training

    shared.check_call(data, "--data DATA", resume=resume, folder=folder)
    settings = shared.read_settings(overrides, SETTINGS)
    if "lr" in settings and data is not None:
        settings.setdefault("lr_end", settings["lr"] / 2)
    where = shared.folder_of(data, resume=resume, folder=folder)
    note = lambda line: base.announce(f"note: {line}")  # noqa: E731
    done = shared.train_or_resume(training, data, where, settings, device=device, report=note)
    if shared.is_first():
        _show(done, where, as_json=as_json)
    shared.leave_ranks()


def _show(done: Trained, folder: Path, *, as_json: bool) -> None:
    weights, result = None if done.weights is None else str(done.weights), done.result
    if as_json:
        values = shared.values_of(result, "stopped", "step", "metrics", "best", "best_step", "seconds", "wait")
        shares = {"points_per_second": done.points, "useful": done.rows.useful, "epochs": done.epochs}
        base.print_json({"folder": str(folder), "weights": weights, **shares, **values})
        return
    for name, value in result.metrics.items():
        best = f"   (best {result.best:.6g} at step {result.best_step:,})" if name == "val_loss" and result.best_step else ""
        click.echo(f"{name:<10}{value:.6g}{best}")
    rate = result.step / result.seconds if result.seconds else 0.0
    ended = shared.STOPPED[result.stopped]
    click.echo(f"{ended}: {result.step:,} steps over {done.epochs:.3g} epochs of the data, {rate:,.1f} steps per second")
    useful = f"{done.rows.useful:.1%} of positions are targets, {result.wait:.1%} of the time spent waiting for data"
    click.echo(f"{done.points:,.0f} points per second ({useful})")
    click.echo(f"run: {printable(str(folder))}")
    if weights is not None:
        click.echo(f"weights: {printable(weights)}")
        name = printable(done.rows.corpus.name)
        click.echo(f"next: stoker time-moe forecast {printable(str(folder))} --data {name} --horizon 96 --score")


@click.command("export", cls=base.Command, doing="exporting the model of {run}")
@click.argument("run", type=base.PATH)
@click.argument("path", type=base.PATH)
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@base.overwrite_option("Replace an earlier checkpoint in PATH.")
@base.json_option
def export(run: str, path: str, latest: bool, overwrite: bool, as_json: bool) -> None:
    """Export the model of RUN as an official checkpoint: the folder PATH with config.json and model.safetensors."""
    from stoker_recipes.time_moe import save_weights
    from stoker_recipes.time_moe.predicting import load_model

    if Path(path).suffix in base.FILE_ENDINGS:
        raise OptionError(
            f"{path} would be a file, but a Time-MoE becomes a folder with config.json and model.safetensors.", path=path
        )
    target = Path(path)
    foreign = sorted(entry.name for entry in target.iterdir()) if target.is_dir() else [target.name] if target.exists() else []
    if foreign and not (overwrite and set(foreign) <= CHECKPOINT):
        raise OptionError(
            f"{path} holds {foreign[0]!r} already. Give a new folder, or --overwrite for a checkpoint and nothing else.", path=path
        )
    loaded = load_model(Path(run), latest=latest)
    save_weights(loaded.model, path, overwrite=overwrite)
    if as_json:
        base.print_json({"path": path, "step": loaded.step, "parameters": loaded.model.size.num_parameters})
        return
    click.echo(f"exported the weights of step {loaded.step:,} as an official checkpoint: {printable(path)}")
    base.report(printable(f"next: stoker time-moe forecast {path} --data DATA --horizon 96"))


@click.group("time-moe", cls=base.CommandGroup, short_help="Forecast with a Time-MoE.")
def time_moe() -> None:
    """Forecast with a Time-MoE; `stoker train time-moe` trains one."""


@time_moe.command("forecast", cls=base.Command, doing="forecasting {data} by {run}")
@click.argument("run", type=base.PATH)
@click.option("--data", required=True, type=base.TABLE, metavar="DATA", help=DATA)
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
@base.plot_option
@base.overwrite_option("Replace the file of --plot.")
@base.device_option
@base.json_option
def forecast(
    run: str, data: str, series: str | None, horizon: int, context: int | None, at: int | None, score: bool,
    plot: str | None, overwrite: bool, device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Forecast with RUN: the folder of a run of `stoker train time-moe`, or an official checkpoint.

    The context is scaled by its own points, as series are in training. The forecast is in the units of the data.

    \b
    stoker time-moe forecast runs/ett --data ett.stoker --series HUFL --horizon 96 --plot hufl.png
    stoker time-moe forecast TimeMoE-50M/ --data ett.stoker --series HUFL --at 17000
    stoker time-moe forecast runs/ett --data ett.stoker --horizon 96 --score
    """
    import torch

    from stoker_recipes.time_moe.data import open_corpus
    from stoker_recipes.time_moe.predicting import load_model

    if plot is not None:
        base.check_new_plot(plot, overwrite=overwrite)
    for name, value in (("--horizon", horizon), ("--context", context)):
        if value is not None and value < 1:
            raise click.UsageError(f"{name} is {value}; expected an integer from 1.")
    if score and (at is not None or plot):
        raise click.UsageError("--score is over many forecasts: leave out --at and --plot.")
    corpus = open_corpus(data, report=lambda note: base.announce(f"note: {note}"))
    number = corpus.find(series) if series is not None else None
    if number is None and not score and len(corpus) > 1:
        names = ", ".join(corpus.series_name(i) for i in range(min(len(corpus), 8))) + (" …" if len(corpus) > 8 else "")
        raise OptionError(f"{corpus.name} has {len(corpus):,} series: {names}. Choose one: --series NAME", parameter="series")
    loaded = load_model(run, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if score:
        chosen = corpus if number is None else corpus.only(number)
        _score(loaded, chosen, horizon=horizon, context=context, stride=horizon, as_json=as_json)
    else:
        _forecast(loaded, corpus, number or 0, at, horizon, context, plot=plot, as_json=as_json)
    if not as_json:
        after = (
            f"export {run} weights/"
            if score
            else f"time-moe forecast {run} --data {base.shown_path(data)} --horizon {horizon} --score"
        )
        base.report(printable(f"next: stoker {after}"))


def _forecast(
    loaded: LoadedModel, corpus: Corpus, number: int, at: int | None, horizon: int, context: int | None, *, plot: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    import numpy as np

    from stoker_recipes.time_moe import predicting

    values, name = corpus.series(number), corpus.series_name(number)
    end = len(values) if at is None else at
    if not 1 <= end <= len(values):
        raise OptionError(
            f"--at is {end:,}; expected a step from 1 to {len(values):,}, the points of series {name!r}.", parameter="at"
        )
    known = np.asarray(values[max(0, end - (context or end)) : end], dtype=np.float64)
    predicted = predicting.forecast(loaded, known[None], horizon)[0]
    came = np.asarray(values[end : end + horizon], dtype=np.float64)
    # Steps after the end of the series are unknown like missing ones.
    actual = np.concatenate([came, np.full(horizon - len(came), np.nan)]) if np.isfinite(came).any() else None
    if plot is not None:
        predicting.plot_forecast(plot, np.asarray(values[:end], dtype=np.float64), predicted, actual, title=name)
    mse, mae, count = (0.0, 0.0, 0) if actual is None else predicting.errors_of(predicted, actual)
    if as_json:
        fields: dict[str, Any] = {"series": name, "model": loaded.source, "from": end, "horizon": horizon}
        fields |= {"mse": mse, "mae": mae, "known": count} if count else {}
        fields["forecast"] = predicted.tolist()
        if actual is not None:
            fields["actual"] = [value if math.isfinite(value) else None for value in actual.tolist()]
        base.print_json(fields)
        return
    _show_forecast(f"{printable(name)} by {printable(loaded.source)}", end, predicted, actual)
    if count:
        partly = f", over the {count:,} known points" if count < horizon else ""
        click.echo(f"MSE {mse:.6g}, MAE {mae:.6g} in the units of the series{partly}")
    if plot is not None:
        base.report(f"written: {plot}")


def _show_forecast(title: str, end: int, predicted: Any, actual: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    columns = {"step": [f"{end + i:,}" for i in range(len(predicted))], "forecast": [f"{value:.6g}" for value in predicted]}
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
        base.print_json({"model": loaded.source, "context": context, "horizon": horizon, **asdict(score)})
        return
    table = base.new_table()
    table.add_column(f"{score.windows:,} windows, {context} -> {horizon}", no_wrap=True)
    for title in ("MSE", "MAE"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row(printable(loaded.source), f"{score.mse:.4f}", f"{score.mae:.4f}")
    for baseline in score.baselines:
        numbers = ["-", "-"] if baseline.mse is None or baseline.mae is None else [f"{baseline.mse:.4f}", f"{baseline.mae:.4f}"]
        table.add_row(f"naive: {baseline.name}", *numbers)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "Series are scaled by the mean and deviation of their first 70 %, targets are in their last 20 %.", soft_wrap=True
    )
    best = score.best_baseline
    if best.mse is not None and score.mse >= best.mse:
        console.print(f"The model is not better than a naive forecast ({best.name}).", soft_wrap=True)


def _open_run(folder: Path, **options: Any) -> TrainedRun:
    from stoker_recipes.time_moe.predicting import open_run

    return open_run(folder, **options)


def _is_checkpoint(folder: Path) -> bool:
    return all((folder / name).is_file() for name in CHECKPOINT)


RECIPE = Recipe(commands={"train": train, "export": export}, open_run=_open_run, owns_folder=_is_checkpoint)
