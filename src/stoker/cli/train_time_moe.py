"""`stoker train time-moe`: series become a trained Time-MoE and an official checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli.paths import PATH
from stoker.cli.train import leave_ranks, stopped_line
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.recipes.time_moe.training import Trained

SWITCHES = {"auto": "auto", "on": True, "off": False}


@click.command("time-moe", short_help="Train a Time-MoE.")
@click.option(
    "--data",
    type=PATH,
    metavar="DATA",
    help="A store, a tree of Time-MoE data (binary folders in place, .jsonl, .json, .npy), or a table such as .csv.",
)
@click.option("--size", metavar="SIZE", help="50m, 200m or tiny. [default: that of --model or --init, or 50m]")
@click.option("--model", type=PATH, metavar="PATH", help="A config.json or its folder: random weights in a model of these sizes.")
@click.option(
    "--init",
    type=PATH,
    metavar="CHECKPOINT",
    help="Start from the weights of an official checkpoint: config.json, model.safetensors.",
)
@click.option("--length", type=int, default=2048, show_default=True, metavar="N", help="Positions per row.")
@click.option(
    "--samples",
    type=click.Choice(["packed", "padded", "compat"]),
    default="packed",
    show_default=True,
    help="packed: short series share rows. padded: one piece of a series per row. compat: the authors' windows bit for bit.",
)
@click.option("--stride", type=int, metavar="N", help="With --samples compat: steps between two windows. [default: the length]")
@click.option(
    "--normalize", type=click.Choice(["zero", "max", "none"]), default="zero", show_default=True, help="How series are scaled."
)
@click.option("--columns", metavar="A,B,…", help="Columns of a store or table to train on. [default: all of numbers]")
@click.option(
    "--batch-size", type=click.IntRange(max=2**20), default=8, show_default=True, metavar="N", help="Rows per batch, on each rank."
)
@click.option(
    "--grad-accum-steps", type=click.IntRange(max=2**20), default=1, show_default=True, metavar="N", help="Batches per update."
)
@click.option("--steps", type=click.IntRange(max=2**40), metavar="N", help="Updates. [default: as many as --epochs takes]")
@click.option("--epochs", type=float, default=1.0, show_default=True, metavar="N", help="Passes over the data.")
@click.option("--lr", type=float, default=1e-4, show_default=True, help="Initial learning rate.")
@click.option("--lr-end", type=float, metavar="FLOAT", help="Learning rate at the end of the cosine decay. [default: half of --lr]")
@click.option("--warmup", type=int, default=0, show_default=True, metavar="N", help="Warm-up updates of the learning rate.")
@click.option("--weight-decay", type=float, default=0.1, show_default=True)
@click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Largest norm of the gradient.")
@click.option("--head-weights", metavar="W,W,…", help="Weight of the loss of each head (1, 8, 32, 64 points). [default: equal]")
@click.option(
    "--valid", type=float, metavar="SHARE", help="Share of each series, at its end, for validation. [default: 0.1; compat: 0]"
)
@click.option("--validate-every", type=int, metavar="N", help="Updates between validations. [default: a tenth of all]")
@click.option("--save-every", type=int, metavar="N", help="Updates between checkpoints. [default: at each validation]")
@click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "bf16"]), default="auto", show_default=True)
@click.option("--graph", type=click.Choice(list(SWITCHES)), default="auto", show_default=True, help="Steps as CUDA graphs.")
@click.option("--compile", type=click.Choice(list(SWITCHES)), default="auto", show_default=True, help="Compile the model.")
@click.option(
    "--activation-checkpointing", is_flag=True, help="Recompute activations in the backward pass: less memory, more time."
)
@click.option("--max-seconds", type=float, metavar="N", help="Stop after this time.")
@click.option("--seed", type=int, default=9899, show_default=True)
@click.option("--folder", type=PATH, metavar="FOLDER", help="Folder of the run. [default: runs/ and the name of the data]")
@click.option("--resume", type=PATH, metavar="FOLDER", help="Resume the run of this folder.")
@click.option(
    "--export", type=PATH, metavar="FOLDER", help="Where the best weights go. [default: weights, in the folder of the run]"
)
@click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N. [default: a GPU if there is one]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def command(
    context: click.Context,
    /,
    folder: str | None,
    resume: str | None,
    export: str | None,
    device: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Train a Time-MoE on DATA, and write its best weights as an official checkpoint.

    Without --steps the run is one epoch. Its folder gets checkpoints and metrics (`stoker runs --plot` plots them). Ctrl-C finishes
    the step, saves and stops.

    \b
    stoker pack "csv/**/*.csv" ett.stoker --wide
    stoker train time-moe --data ett.stoker --size 50m --length 2048
    stoker train time-moe --data time300b/ --init TimeMoE-50M/ --steps 10000
    stoker train time-moe --data time300b/ --model my-sizes/config.json
    stoker train --resume runs/ett
    """
    from stoker.cli.main import Terminated
    from stoker.experiment.build import find_ranks
    from stoker.recipes.time_moe import training

    given = {name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    data = options.pop("data")
    if (data is None) == (resume is None):
        raise click.UsageError("Give --data DATA, or --resume FOLDER.")
    settings: dict[str, Any] = {name: SWITCHES[value] if name in ("graph", "compile") else value for name, value in options.items()}
    settings["columns"] = settings["columns"].split(",") if settings["columns"] else None
    settings["head_weights"] = _numbers(settings["head_weights"])
    if settings["lr_end"] is None:
        settings["lr_end"] = settings["lr"] / 2
    if export is not None and Path(export).exists() and not Path(export).is_dir():
        raise OptionError(f"--export is {export}, which is a file; expected a folder for the weights.")  # before a long training
    shows = not quiet and not as_json
    common: dict[str, Any] = {"device": device, "progress": shows, "export": export, "report": _note}
    where = Path(resume or folder or f"runs/{Path(data).resolve().name.partition('.')[0]}")
    try:
        if resume is not None:
            if folder is not None:
                raise click.UsageError("--folder is for a new run; --resume names its folder itself.")
            changes = {name: settings[name] for name in given}
            done = training.resume(where, **common, **changes)
        else:
            done = training.train(data, folder=where, **common, **settings)
    except (KeyboardInterrupt, Terminated) as stop:
        if find_ranks().is_first:
            click.echo(stopped_line(where), err=True)
        sys.exit(130 if isinstance(stop, KeyboardInterrupt) else 143)
    if find_ranks().is_first:
        _show(done, where, as_json=as_json)
    leave_ranks()


def _numbers(given: str | None) -> list[float] | None:
    try:
        return [float(one) for one in given.split(",")] if given is not None else None
    except ValueError:
        raise click.UsageError(f"--head-weights is {given!r}; expected numbers separated by commas, such as 1,1,1,2.") from None


def _note(note: str) -> None:
    click.echo(f"note: {printable(note)}", err=True)


def _show(done: Trained, folder: Path, *, as_json: bool) -> None:
    weights = None if done.weights is None else str(done.weights)
    if as_json:
        report: dict[str, Any] = {
            "folder": str(folder),
            "weights": weights,
            "points_per_second": done.points,
            "useful": done.rows.useful,
        }
        for name in ("stopped", "step", "metrics", "best", "best_step", "seconds", "wait"):
            report[name] = getattr(done.result, name)
        click.echo(json.dumps({**report, "epochs": done.epochs}))
        return
    result = done.result
    for name, value in result.metrics.items():
        best = f"   (best {result.best:.6g} at step {result.best_step:,})" if name == "val_loss" and result.best_step else ""
        click.echo(f"{name:<10}{value:.6g}{best}")
    rate = result.step / result.seconds if result.seconds else 0.0
    ended = "stopped by --max-seconds" if result.stopped == "budget" else "finished"
    click.echo(f"{ended}: {result.step:,} steps over {done.epochs:.3g} epochs of the data, {rate:,.1f} steps per second")
    useful = f"{done.rows.useful:.1%} of positions are targets, {result.wait:.1%} of the time spent waiting for data"
    click.echo(f"{done.points:,.0f} points per second ({useful})")
    click.echo(f"run: {printable(str(folder))}")
    if weights is not None:
        click.echo(f"weights: {printable(weights)}")
        click.echo(f"next: stoker forecast {printable(str(folder))} --data {printable(done.rows.corpus.name)} --horizon 96 --score")
