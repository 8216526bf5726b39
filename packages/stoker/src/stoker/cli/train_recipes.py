"""`stoker train NAME`: the commands of the recipes, and what they share with `stoker train CONFIG`."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._signals import Terminated
from stoker._text import printable
from stoker.cli import command as base
from stoker.errors import ConfigError, OptionError
from stoker.experiment.parse import CONFIG_NAME
from stoker_recipes.run_folder import RECIPE_NAME

if TYPE_CHECKING:
    from stoker.train.fit import Result
    from stoker_recipes.icecube import training as icecube
    from stoker_recipes.tabular import training as tabular
    from stoker_recipes.tfa import training as tfa
    from stoker_recipes.time_moe import training as time_moe
    from stoker_recipes.timehut import training as timehut
    from stoker_recipes.timehut.archive import ArchiveRow


def show_fields(settings: type) -> None:
    """Print the fields of a configuration, with their types and defaults."""
    from msgspec.inspect import StructType, type_info

    from stoker.experiment.parse import explain

    info = type_info(settings)
    assert isinstance(info, StructType)
    click.echo("\n".join(explain(info)))


def is_first() -> bool:
    """Whether this process speaks for all ranks."""
    from stoker.experiment.prepare import find_ranks

    return find_ranks().is_first


def leave_ranks() -> None:
    """End a process that has trained together with others, once all is saved and printed."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # In one of some twenty ends torch's process group aborts the interpreter as it takes itself apart.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@contextlib.contextmanager
def saying_how_to_resume(folder: Path, *, needs: tuple[str, ...] = (CONFIG_NAME, RECIPE_NAME)) -> Iterator[None]:
    """Where a signal stops the run, say what is saved and how to resume it, which takes one of the files that it `needs`.

    Before its first step there is nothing to save, and a second Ctrl-C does not wait for a save.
    """
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        from stoker.train.checkpoint import saved_step

        step, again = saved_step(folder / "checkpoints"), f"stoker train --resume {printable(str(folder))}"
        if step is not None:
            line = f"The run is saved at step {step:,}. Resume it: {again}"
        else:
            is_known = any((folder / name).exists() for name in needs)
            line = f"before anything was saved. Begin again: {again if is_known else 'the same command'}"
        if is_first():
            click.echo(f"stoker: stopped{'.' if step is not None else ''} {line}", err=True)
        sys.exit(128 + stop.number if isinstance(stop, Terminated) else 130)


def check_call(source: object, needs: str, *, resume: str | None, folder: str | None = None, overwrite: bool = False) -> None:
    """Refuse a call that gives both data (or neither) and a run to resume, or an option that is for a new run alone."""
    if bool(source) == (resume is not None):
        raise click.UsageError(f"Give {needs}, or --resume FOLDER.")
    if resume is not None and folder is not None:
        raise click.UsageError("--folder is for a new run; --resume names its folder itself.")
    if resume is not None and overwrite:
        raise click.UsageError("--overwrite replaces a run, --resume continues it: give one of them.")


def train_or_resume(
    recipe: Any, source: Any, folder: Path, /, *, common: dict[str, Any], changed: set[str], **settings: Any
) -> Any:
    """Train on `source`, or without one resume the run in a folder, with those settings alone that are named in `changed`."""
    common = {"progress": base.shows_progress(), **common}
    with saying_how_to_resume(folder):
        if source:
            return recipe.train(source, folder=folder, **common, **settings)
        return recipe.resume(folder, **common, **{name: settings[name] for name in changed})


def given_options(context: click.Context) -> set[str]:
    """Return the names of the options that the user gave."""
    return {name for name in context.params if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}


def values_of(result: Result, *names: str) -> dict[str, Any]:
    """Attributes by name, for JSON."""
    return {name: getattr(result, name) for name in names}


@click.command("tfa", cls=base.Command, doing="training {config|resume}", short_help="Train on market bars.")
@click.argument("config", required=False, type=base.CONFIG)
@base.set_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@click.option("--fields", is_flag=True, help="Show all keys of a configuration.")
@base.json_option
def _tfa(
    config: str | None, assignments: tuple[str, ...], resume: str | None, overwrite: bool, fields: bool, as_json: bool
) -> None:
    """Train on market bars, with the settings of CONFIG (YAML).

    Bars become indicators and labels; train, validation and score are kept apart in time; training stops early by the
    validation loss, and the score compares the model with baselines. A likely leak is an error. Ctrl-C saves and stops.

    The run is written to `out_dir`, which must be new, empty, or of an earlier run of this recipe.

    \b
    stoker train tfa.yaml
    stoker train tfa.yaml --set model=banded --set epochs=10
    stoker train --resume runs/tfa
    stoker export runs/tfa bundle/
    """
    if fields:
        from stoker_recipes.tfa.settings import Settings

        show_fields(Settings)
        return
    check_call(config, "a CONFIG", resume=resume, overwrite=overwrite)
    from stoker_recipes.tfa import read_settings, train

    path = Path(config or "") if resume is None else Path(resume) / CONFIG_NAME
    if resume is not None and not path.is_file():
        raise ConfigError(
            f"{resume} has no {CONFIG_NAME}: its run ended before its first step. Start it again: stoker train CONFIG"
        )
    settings = read_settings(path, assignments=assignments)
    folder = Path(resume or settings.out_dir or "")

    with saying_how_to_resume(folder, needs=(CONFIG_NAME,)):
        done = train(settings, folder, resume=resume is not None, overwrite=overwrite, progress=base.shows_progress(), say=base.say)
    _show_tfa(done, folder, as_json=as_json)


def _show_tfa(done: tfa.TrainedTfa, folder: Path, *, as_json: bool) -> None:
    from stoker_recipes.tfa.training import NAMES

    result, score = done.result, done.score
    if as_json:
        values = values_of(result, "stopped", "step", "epoch", "best", "best_step", "seconds")
        click.echo(json.dumps({"folder": str(folder), "score": asdict(score), **values}))
        return
    words = {"finished": "all epochs", "early": "stopped early", "budget": "stopped by max_training_hours"}
    ended = words.get(result.stopped, result.stopped)
    click.echo(f"{'trained':<10} {result.epoch:,} epochs, {result.step:,} updates in {result.seconds:,.0f} s ({ended})\n")
    click.echo(f"score of {score.labels:,} labels, {score.up:.1%} of them up".ljust(48) + "AUC   log-loss   calibration error")
    for line in score.lines:
        others = "" if line.log_loss is None or line.calibration is None else f"{line.log_loss:>11.4f}{line.calibration:>20.4f}"
        click.echo(f"  {NAMES[line.name]:<43}{line.auc:>6.4f}{others:<31}")
    click.echo(f"  {'chance: labels shifted in time (95 %)':<43}{score.chance:>6.4f}\n")
    click.echo(printable(f"verdict    {score.verdict}"))
    click.echo(printable(f"run        {folder}   next: stoker export {folder} bundle/"))


COUNT = click.IntRange(max=2**20)
SWITCHES = {"auto": "auto", "on": True, "off": False}


@click.command("time-moe", cls=base.Command, doing="training with {data|resume}", short_help="Train a Time-MoE.")
@click.option(
    "--data",
    type=base.TABLE,
    metavar="DATA",
    help="A store, a tree of Time-MoE data (binary folders in place, .jsonl, .json, .npy), or a table such as .csv.",
)
@click.option("--size", metavar="SIZE", help="50m, 200m or tiny. [default: that of --model or --init, or 50m]")
@click.option(
    "--model", type=base.PATH, metavar="PATH", help="A config.json or its folder: random weights in a model of these sizes."
)
@click.option("--init", type=base.PATH, metavar="CHECKPOINT", help="Start from the weights of an official checkpoint.")
@click.option("--length", type=int, default=2048, show_default=True, metavar="N", help="Positions per row.")
@base.choice_option(
    "--samples",
    choices=["packed", "padded", "compat"],
    help="packed: short series share rows. padded: one piece of a series per row. compat: the authors' windows bit for bit.",
)
@click.option("--stride", type=int, metavar="N", help="With --samples compat: steps between two windows. [default: the length]")
@base.choice_option("--normalize", choices=["zero", "max", "none"], help="Scaling of series.")
@click.option("--columns", metavar="A,B,…", help="Columns of a store or table to train on. [default: all of numbers]")
@click.option("--batch-size", type=COUNT, default=8, show_default=True, metavar="N", help="Rows per batch, on each rank.")
@click.option("--grad-accum-steps", type=COUNT, default=1, show_default=True, metavar="N", help="Batches per update.")
@click.option("--steps", type=click.IntRange(max=2**40), metavar="N", help="Updates. [default: as many as --epochs takes]")
@click.option("--epochs", type=float, default=1.0, show_default=True, metavar="N", help="Passes over the data.")
@click.option("--lr", type=float, default=1e-4, show_default=True, help="Initial learning rate.")
@click.option("--lr-end", type=float, metavar="FLOAT", help="Learning rate at the end of the cosine decay. [default: half of --lr]")
@click.option("--warmup", type=int, default=0, show_default=True, metavar="N", help="Warm-up updates of the learning rate.")
@click.option("--weight-decay", type=float, default=0.1, show_default=True)
@click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Largest norm of the gradient.")
@click.option("--head-weights", metavar="W,W,…", help="Weight of the loss of each head (1, 8, 32, 64 points). [default: equal]")
@click.option(
    "--valid", type=float, metavar="SHARE", help="Share of each series, at its end, to validate on. [default: 0.1; compat: 0]"
)
@click.option("--validate-every", type=int, metavar="N", help="Updates between validations. [default: a tenth of all]")
@click.option("--save-every", type=int, metavar="N", help="Updates between checkpoints. [default: at each validation]")
@base.choice_option("--precision", choices=["auto", "fp32", "tf32", "bf16"])
@base.choice_option("--graph", choices=list(SWITCHES), default="auto", help="Steps as CUDA graphs.")
@base.choice_option("--compile", choices=list(SWITCHES), default="auto", help="Compile the model.")
@click.option(
    "--activation-checkpointing", is_flag=True, help="Recompute activations in the backward pass: less memory, more time."
)
@click.option("--max-seconds", type=float, metavar="N", help="Stop after this time.")
@base.seed_option(9899)
@base.folder_option
@base.resume_option
@click.option("--export", type=base.PATH, metavar="FOLDER", help="Where the best weights go. [default: weights, in the run]")
@base.device_option
@base.json_option
@click.pass_context
def _time_moe(
    context: click.Context, /, folder: str | None, resume: str | None, export: str | None, device: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
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
    from stoker_recipes.time_moe import training

    data = options.pop("data")
    check_call(data, "--data DATA", resume=resume, folder=folder)
    settings: dict[str, Any] = {name: SWITCHES[value] if name in ("graph", "compile") else value for name, value in options.items()}
    settings["columns"] = settings["columns"].split(",") if settings["columns"] else None
    settings["head_weights"] = _numbers(settings["head_weights"])
    if settings["lr_end"] is None:
        settings["lr_end"] = settings["lr"] / 2
    if export is not None and Path(export).exists() and not Path(export).is_dir():
        raise OptionError(f"--export is {export}, which is a file; expected a folder for the weights.")  # before a long training
    common = {"device": device, "export": export, "report": lambda note: base.announce(f"note: {note}")}
    where = Path(resume or folder or f"runs/{Path(data).resolve().name.partition('.')[0]}")
    changed = given_options(context) & set(settings)
    done = train_or_resume(training, data, where, common=common, changed=changed, **settings)
    if is_first():
        _show_time_moe(done, where, as_json=as_json)
    leave_ranks()


def _numbers(given: str | None) -> list[float] | None:
    try:
        return [float(one) for one in given.split(",")] if given is not None else None
    except ValueError:
        raise click.UsageError(f"--head-weights is {given!r}; expected numbers separated by commas, such as 1,1,1,2.") from None


def _show_time_moe(done: time_moe.Trained, folder: Path, *, as_json: bool) -> None:
    weights, result = None if done.weights is None else str(done.weights), done.result
    if as_json:
        values = values_of(result, "stopped", "step", "metrics", "best", "best_step", "seconds", "wait")
        shares = {"points_per_second": done.points, "useful": done.rows.useful, "epochs": done.epochs}
        click.echo(json.dumps({"folder": str(folder), "weights": weights, **shares, **values}))
        return
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


_SETTINGS: list[tuple[str, Any, str]] = [
    ("--epochs", int, "Passes over the series. [default: 200 updates, or 600 for more than 100,000 values]"),
    ("--batch-size", COUNT, "Series per update. [default: 8]"),
    ("--lr", float, "Learning rate. [default: 0.001]"),
    ("--width", COUNT, "Values of a representation. [default: 320]"),
    ("--schedule", str, "Temperature over epochs: cosine, linear or constant. [default: that of the method]"),
    ("--min-tau", float, "Smallest temperature."),
    ("--max-tau", float, "Largest temperature."),
    ("--t-max", float, "Period of the temperature, in epochs."),
    ("--amc-instance", float, "Weight of the angular margin between series."),
    ("--amc-temporal", float, "Weight of the angular margin between steps."),
    ("--amc-margin", float, "The angular margin, in radians."),
    ("--tau-instance", float, "SoftCLT: sharpness of targets between series; 0 for hard ones."),
    ("--tau-temporal", float, "SoftCLT: sharpness of targets between steps; 0 for hard ones."),
]


def _timehut_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that are settings of an encoder."""
    for name, kind, text in reversed(_SETTINGS):
        command = click.option(name, type=kind, metavar="N" if kind is not str else "NAME", help=text)(command)
    return command


@click.command(
    "timehut", cls=base.Command, doing="training with {archive|data|resume}", short_help="Learn representations of time series."
)
@click.option("--data", type=base.TABLE, metavar="FILE", help="Training series: .tsv (UCR), .ts or .arff (UEA), or a store.")
@click.option("--test", type=base.TABLE, metavar="FILE", help="Test series; with labels, the run gets a score.")
@click.option(
    "--archive", type=base.PATH, metavar="FOLDER", help="Every data set of a folder instead: NAME_TRAIN.tsv and NAME_TEST.tsv."
)
@click.option("--methods", metavar="A,B,…", help="With --archive: methods to compare. [default: timehut,ts2vec,softclt]")
@click.option(
    "--seeds", type=click.IntRange(min=1, max=4096), metavar="N", help="With --archive: seeds of each method. [default: 16]"
)
@click.option("--method", metavar="NAME", default="timehut", show_default=True, help="timehut, ts2vec or softclt.")
@_timehut_options
@base.choice_option(
    "--normalize",
    choices=["auto", "global", "none"],
    help="auto: by mean and deviation of all training series, unless each is z-normalised already.",
)
@click.option("--compat/--no-compat", default=True, show_default=True, help="TimeHUT's loss as its authors' code has it.")
@base.seed_option(2002)
@base.folder_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@base.device_option
@base.json_option
def _timehut(
    data: str | None, test: str | None, archive: str | None, methods: str | None, seeds: int | None, method: str, normalize: str,
    folder: str | None, resume: str | None, overwrite: bool, device: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Learn representations of time series without their labels, by TimeHUT, TS2Vec or SoftCLT.

    The run gets the encoder, the representations of the training series and, with labelled test series, the accuracy of the papers'
    SVM.

    \b
    stoker train timehut --data Chinatown_TRAIN.tsv --test Chinatown_TEST.tsv --epochs 200
    stoker train timehut --data Chinatown_TRAIN.tsv --method softclt
    stoker train timehut --archive UCR/ --methods ts2vec,timehut --seeds 16
    stoker embed runs/Chinatown embeddings.npy --data new.tsv
    """
    if sum(one is not None for one in (data, archive, resume)) != 1:
        raise click.UsageError("Give one of --data FILE, --archive FOLDER and --resume FOLDER.")
    if archive is None and (methods is not None or seeds is not None):
        raise click.UsageError("--methods and --seeds are for --archive.")

    if archive is not None:
        _run_archive(archive, methods, seeds, device=device, as_json=as_json, options=options)
        return
    from stoker_recipes.timehut import training

    where = Path(resume or folder or f"runs/{Path(data or '').name.partition('.')[0].removesuffix('_TRAIN')}")
    options |= {"test": test, "method": method, "normalize": normalize, "overwrite": overwrite}
    done = train_or_resume(training, data, where, common={"device": device, "say": base.say}, changed=set(), **options)
    _show_timehut(done, where, as_json=as_json)


CLASSIFIER_NAMES = {"svm": "SVM (the papers' protocol)", "knn": "nearest neighbour", "linear": "linear probe"}


def _show_timehut(done: timehut.TrainedTimeHut, folder: Path, *, as_json: bool) -> None:
    result = done.result
    if as_json:
        values = {"accuracy": done.scores, "majority": done.majority, "cpu_seconds": done.cpu_seconds}
        click.echo(json.dumps({"folder": str(folder), **values, **values_of(result, "stopped", "step", "metrics", "seconds")}))
        return
    click.echo(f"{'trained':<10} {result.step:,} updates in {result.seconds:,.1f} s, loss {result.metrics['loss']:.4g}")
    if done.scores:
        click.echo("\naccuracy on the test series")
        for name, value in done.scores.items():
            click.echo(f"  {CLASSIFIER_NAMES[name]:<32}{value:>7.2%}")
        click.echo(f"  {'always the most frequent class':<32}{done.majority:>7.2%}")
        click.echo("  This is one seed. Seeds differ by a point or more on small sets: compare methods with --archive.\n")
    click.echo(printable(f"run        {folder}   next: stoker embed {folder} embeddings.npy --data FILE"))


def _run_archive(
    archive: str, methods: str | None, seeds: int | None, *, device: str | None, as_json: bool, options: dict[str, Any]
) -> None:
    from stoker_recipes.timehut.archive import compare_methods, run_archive

    options.pop("seed")
    given = {name: value for name, value in options.items() if value is not None}
    chosen = {} if methods is None else {"methods": [one.strip() for one in methods.split(",")]}

    def show(row: ArchiveRow) -> None:
        if not as_json:
            found = row.interval
            spread = f"{min(row.accuracies):>8.2%} to {max(row.accuracies):.2%}"
            click.echo(
                printable(f"{row.dataset:<24} {row.method:<8} {found.mean:>8.2%}  [{found.low:.2%}, {found.high:.2%}]{spread}")
            )

    if not as_json:
        click.echo(f"{'data set':<24} {'method':<8} {'mean':>8}  [95 % interval]   lowest to highest seed")
    rows = run_archive(archive, seeds=seeds or 16, device=device, report=show, **chosen, **given)
    compared = compare_methods(rows)
    if as_json:
        click.echo(json.dumps({"rows": [asdict(row) for row in rows], "comparisons": [asdict(one) for one in compared]}))
        return
    for one in compared:
        d = one.difference
        verdict = "no difference shown" if d.low <= 0 <= d.high else f"{one.method if d.low > 0 else one.other} is better"
        click.echo(
            f"\n{one.method} - {one.other}: {100 * d.mean:+.2f} points [{100 * d.low:+.2f}, {100 * d.high:+.2f}] over {d.number} pairs "
            f"of runs with the same seed ({one.wins} better, {one.losses} worse): {verdict}"
        )


@click.command("icecube", cls=base.Command, doing="training with {data|resume}", short_help="Train a model of neutrino directions.")
@click.option("--data", type=base.PATH, metavar="STORE", help="A store that `stoker pack --recipe icecube` made.")
@click.option("--size", metavar="SIZE", default="5m", show_default=True, help="5m, 10m, 19m, 29m or tiny.")
@click.option("--where", metavar="CONDITION", help='Events to train on, such as "num_steps >= 500". [default: all]')
@click.option("--valid", metavar="CONDITION", help='Events to validate on, such as "batch_id == 651", or another store.')
@click.option("--init", type=base.PATH, metavar="RUN", help="Start from the best weights of another run.")
@click.option("--epochs", type=COUNT, default=10, show_default=True, metavar="N", help="Passes over the events.")
@click.option("--batch-size", type=COUNT, default=4096, show_default=True, metavar="N", help="Events per batch, on each rank.")
@click.option("--grad-accum-steps", type=COUNT, default=1, show_default=True, metavar="N", help="Batches per update.")
@click.option("--lr", type=float, default=0.005, show_default=True, help="Highest learning rate of Muon.")
@click.option("--side-lr", type=float, default=3e-4, show_default=True, help="Highest learning rate of AdamW.")
@click.option("--warmup", type=COUNT, default=2000, show_default=True, metavar="N", help="Updates until it is reached.")
@click.option("--weight-decay", type=float, default=0.01, show_default=True)
@click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Largest norm of the gradient.")
@click.option("--max-doms", type=COUNT, default=128, show_default=True, metavar="N", help="Most DOMs per event.")
@base.choice_option("--input", choices=["linear", "none"], help="Map of the tokens.")
@base.choice_option("--head", choices=["vmf", "direction"], help="What is predicted.")
@click.option("--kappa-penalty", type=float, default=1e-4, show_default=True, help="First weight of the penalty on kappa.")
@click.option("--angle-weight", type=float, default=0.5, show_default=True, help="Weight of the angle in the loss.")
@click.option("--ema", type=float, metavar="DECAY", help="Decay of an EMA of the weights. [default: none]")
@base.choice_option("--order", choices=["blocks", "shuffle", "sequential"])
@base.choice_option("--precision", choices=["auto", "fp32", "bf16"])
@base.choice_option("--residual", choices=["fp32", "bf16"], help="Type of the residual in bf16.")
@base.choice_option("--graph", choices=list(SWITCHES), default="auto", help="Steps as CUDA graphs.")
@click.option("--save-every", type=COUNT, metavar="N", help="Updates between checkpoints. [default: one per epoch]")
@click.option("--max-seconds", type=float, metavar="N", help="Stop after this time.")
@base.seed_option(17)
@base.folder_option
@base.resume_option
@base.device_option
@base.json_option
@click.pass_context
def _icecube(
    context: click.Context, /, data: str | None, folder: str | None, resume: str | None, device: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Train a transformer that predicts the direction of IceCube events.

    Defaults are those of the published 5M model. The folder gets checkpoints and metrics. Ctrl-C finishes the step, saves and stops.

    \b
    stoker pack icecube/ ice.stoker --recipe icecube
    stoker train icecube --data ice.stoker --size 19m --where "batch_id <= 650" --valid "batch_id == 651"
    stoker train icecube --data ice.stoker --init runs/ice --where "num_steps >= 500" --max-doms 512 --lr 2.5e-4 --side-lr 3e-5
    stoker train --resume runs/ice
    stoker predict runs/ice --data test.stoker --out submission.csv
    """
    from stoker_recipes.icecube import training

    check_call(data, "--data STORE", resume=resume, folder=folder)
    settings: dict[str, Any] = {name: SWITCHES[value] if name == "graph" else value for name, value in options.items()}
    where = Path(resume or folder or f"runs/{Path(data or '').resolve().name.partition('.')[0]}")
    changed = given_options(context) & set(settings)
    done = train_or_resume(training, data, where, common={"device": device}, changed=changed, **settings)
    if is_first():
        _show_icecube(done, where, as_json=as_json)
    leave_ranks()


def _show_icecube(done: icecube.TrainedIceCube, folder: Path, *, as_json: bool) -> None:
    result = done.result
    if as_json:
        values = values_of(result, "stopped", "step", "epoch", "metrics", "best", "best_step", "seconds", "wait")
        click.echo(json.dumps({"folder": str(folder), "events_per_second": done.events_per_second, **values}))
        return
    for name, value in result.metrics.items():
        click.echo(f"{name:<12}{value:.6g}")
    ended = "stopped by --max-seconds" if result.stopped == "budget" else "finished"
    waiting = f"{result.wait:.1%} of the time spent waiting for data"
    click.echo(
        f"{ended}: {result.step:,} steps in {result.seconds:,.0f} s, {done.events_per_second:,.0f} events per second, {waiting}"
    )
    click.echo(printable(f"run: {folder}   next: stoker predict {folder} --data STORE --out submission.csv"))


@click.command(
    "tabular", cls=base.Command, doing="training with {target|resume}", short_help="Learn a table of events, to generate others."
)
@click.option(
    "--target",
    type=base.TABLE,
    multiple=True,
    metavar="FILE",
    help="Events, or single rows: .parquet, .csv, .arrow or .feather. A folder or a pattern for several files, or repeat it.",
)
@base.key_option("key", "Column that names the subject of an event. [default: every row is a subject]")
@click.option("--context", type=base.TABLE, metavar="FILE", help="Facts of the subjects, one row each.")
@click.option("--context-key", metavar="COLUMN", help="The key of the contexts. [default: --key]")
@base.choice_option("--size", choices=["s", "m", "l"], default="m", help="Size of the model.")
@click.option("--encoding", multiple=True, metavar="COLUMN=KIND", help="Kind of a column, such as place=lat_long. May be repeated.")
@click.option("--epochs", type=int, default=100, show_default=True, metavar="N", help="Passes over the subjects, at most.")
@click.option("--batch-size", type=COUNT, metavar="N", help="Subjects per update. [default: about 1/64 of them, from 8 to 2,048]")
@click.option("--lr", type=float, metavar="N", help="Learning rate. [default: by the batch size]")
@click.option("--patience", type=int, default=5, show_default=True, metavar="N", help="Epochs without a better validation loss.")
@click.option("--window", type=int, default=100, show_default=True, metavar="N", help="Events of a sequence per update, at most.")
@click.option("--max-seconds", type=float, metavar="N", help="Stop training after this time.")
@click.option("--max-grad-norm", type=float, metavar="N", help="Clip the gradient to this norm.")
@click.option(
    "--noise", type=float, metavar="N", help="Train with differential privacy, with noise of this multiple; 1.5 is usual."
)
@click.option(
    "--max-epsilon", type=float, default=10.0, show_default=True, metavar="N", help="With --noise: what training may cost."
)
@click.option(
    "--delta", type=float, default=1e-5, show_default=True, metavar="N", help="With --noise: what --max-epsilon does not cover."
)
@click.option("--protect/--no-protect", default=True, show_default=True, help="Keep only values that several subjects have.")
@base.seed_option(0)
@base.folder_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@base.device_option
@base.json_option
def _tabular(
    target: tuple[str, ...], encoding: tuple[str, ...], folder: str | None, resume: str | None, overwrite: bool, device: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Learn the events of subjects, such as the purchases of users, so that `stoker generate` can make new ones.

    Values that fewer than 5 subjects have are not learned, unless --no-protect is given. Training stops early by the validation loss
    of subjects that were held out.

    \b
    stoker train tabular --target events.parquet --key user_id --context users.parquet
    stoker generate runs/events synthetic.parquet --subjects 10000
    """
    check_call(target, "--target FILE", resume=resume, overwrite=overwrite)
    kinds = dict(one.rpartition("=")[::2] for one in encoding)
    if "" in kinds:
        raise click.UsageError(f"--encoding is {encoding[0]!r}; expected COLUMN=KIND, such as place=lat_long.")
    from stoker_recipes.tabular import training

    first = Path(target[0] if target else "")
    first = first.absolute().parent if glob.has_magic(first.name) else first  # of a pattern
    where = Path(resume or folder or f"runs/{first.stem}")
    options |= {"encodings": kinds, "overwrite": overwrite}
    source = target[0] if len(target) == 1 else list(target)
    done = train_or_resume(training, source, where, common={"device": device, "say": base.say}, changed=set(), **options)
    _show_tabular(done, where, as_json=as_json)


def _show_tabular(done: tabular.TrainedTabular, folder: Path, *, as_json: bool) -> None:
    result = done.result
    assert result is not None
    if as_json:
        values = values_of(result, "stopped", "step", "epoch", "metrics", "best", "best_step", "seconds")
        click.echo(json.dumps({"folder": str(folder), **values}))
        return
    words = {"finished": "all epochs", "early": "stopped early", "budget": "stopped by --max-seconds"}
    ended = words.get(result.stopped, result.stopped)
    click.echo(f"{'trained':<10} {result.epoch:,} epochs, {result.step:,} updates in {result.seconds:,.1f} s ({ended})")
    click.echo(f"{'loss':<10} {result.best:.4f} nats per event on held-out subjects")
    click.echo(printable(f"run        {folder}   next: stoker generate {folder} synthetic.parquet --subjects 1000"))


RECIPES: dict[str, click.Command] = {
    "icecube": _icecube, "tabular": _tabular, "time-moe": _time_moe, "tfa": _tfa, "timehut": _timehut
}  # fmt: skip
"""Recipes by name: `stoker train NAME …`. Their runs have a recipe.json; a configuration of one is known by its keys."""
