"""What TimeHUT registers with Stoker: training, a search, `stoker timehut embed`, and predictions of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stoker.cli.command as base
import stoker.cli.training as shared
from stoker.cli.tune import show_study
from stoker.extend import Recipe, disk, printable

if TYPE_CHECKING:
    from stoker.experiment import TrainedRun
    from stoker_recipes.timehut.training import TrainedTimeHut

SETTINGS = "stoker_recipes.timehut.settings:EncoderSettings"
SERIES = "Series: .tsv (UCR), .ts or .arff (UEA), or a store."
CLASSIFIER_NAMES = {"svm": "SVM (the papers' protocol)", "knn": "nearest neighbour", "linear": "linear probe"}


@click.command("timehut", cls=base.Command, doing="training with {data|resume}", short_help="Learn representations of time series.")
@click.option("--data", type=base.TABLE, metavar="FILE", help=f"Training series. {SERIES}")
@click.option("--test", type=base.TABLE, metavar="FILE", help="Test series; with labels, the run gets a score.")
@shared.settings_option(SETTINGS)
@base.choice_option(
    "--normalize",
    choices=["auto", "global", "none"],
    help="auto: by mean and deviation of all training series, unless each is z-normalised already.",
)
@base.folder_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@base.device_option
@base.json_option
def train(
    data: str | None, test: str | None, overrides: tuple[str, ...], normalize: str, folder: str | None, resume: str | None,
    overwrite: bool, device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Learn representations of time series without their labels, by TimeHUT, TS2Vec or SoftCLT.

    The run gets the encoder, the representations of the training series and, with labelled test series, the accuracy of the papers'
    SVM.

    \b
    stoker train timehut --data Chinatown_TRAIN.tsv --test Chinatown_TEST.tsv --set epochs=200
    stoker train timehut --data Chinatown_TRAIN.tsv --set method=softclt
    stoker timehut embed runs/Chinatown embeddings.npy --data new.tsv
    """
    if (data is None) == (resume is None):
        raise click.UsageError("Give either --data FILE or --resume FOLDER.")
    settings = shared.read_settings(overrides, SETTINGS)
    from stoker_recipes.timehut import training

    where = Path(resume or folder or f"runs/{Path(data or '').name.partition('.')[0].removesuffix('_TRAIN')}")
    if data is not None:
        settings |= {"test": test, "normalize": normalize, "overwrite": overwrite}
    done = shared.train_or_resume(training, data, where, settings, device=device, say=base.say)
    _show(done, where, as_json=as_json)


def _show(done: TrainedTimeHut, folder: Path, *, as_json: bool) -> None:
    result = done.result
    if as_json:
        values = {"accuracy": done.scores, "majority": done.majority, "cpu_seconds": done.cpu_seconds}
        base.print_json({"folder": str(folder), **values, **shared.values_of(result, "stopped", "step", "metrics", "seconds")})
        return
    click.echo(f"{'trained':<10} {result.step:,} updates in {result.seconds:,.1f} s, loss {result.metrics['loss']:.4g}")
    if done.scores:
        click.echo("\naccuracy on the test series")
        for name, value in done.scores.items():
            click.echo(f"  {CLASSIFIER_NAMES[name]:<32}{value:>7.2%}")
        click.echo(f"  {'always the most frequent class':<32}{done.majority:>7.2%}")
        click.echo("  This is one seed. Seeds differ by a point or more on small sets: compare methods by several seeds.\n")
    click.echo(printable(f"run        {folder}   next: stoker timehut embed {folder} embeddings.npy --data FILE"))


@click.command("timehut", cls=base.Command, doing="searching with {data}")
@click.option("--data", type=base.TABLE, required=True, metavar="FILE", help=f"Labelled training series. {SERIES}")
@base.choice_option(
    "--scenario",
    choices=["temp", "amc", "combined"],
    default="combined",
    help="temp: the temperature schedule; amc: the angular margin; combined: both.",
)
@click.option("--budget", metavar="TIME", help="4s, 10min, or a number of trials. [default: from the size of the data]")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Length of a full trial. [default: 160 updates]")
@click.option("--storage", metavar="FILE|URL", help="Where the study is kept, to continue it. [default: in memory]")
@base.json_option
def search(
    data: str, scenario: str, budget: str | None, epochs: int | None, storage: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Search the temperature and the angular margin of TimeHUT. Configurations train as one population, on the same crops.

    The score is the mean margin of a classifier in repeated cross-validation of the training series: on small sets their accuracy is
    often the same for all configurations.

    \b
    stoker tune search timehut --data Chinatown_TRAIN.tsv --scenario combined --budget 60s
    """
    from stoker.tune import search as run_search
    from stoker_recipes.timehut.tuning import SPACES, objective_of

    def use(params: dict[str, Any]) -> str:
        flags = " ".join(f"--set {key}={value:.6g}" for key, value in params.items())
        return f"next: stoker train timehut --data {base.shown_path(data)} {flags}"

    study = run_search(
        objective_of(data, epochs=epochs),
        SPACES[scenario],
        budget=budget,
        direction="maximize",
        storage=storage,
        name=f"timehut-{scenario}",
        group_size=16,
        report=base.announce,
    )
    show_study(study, use, where=storage, name=f"timehut-{scenario}", as_json=as_json)


@click.group("timehut", cls=base.CommandGroup, short_help="Use the representations of TimeHUT.")
def timehut() -> None:
    """Use the representations of a run of `stoker train timehut`."""


@timehut.command("embed", cls=base.Command, doing="computing representations of {data} by {run}")
@click.argument("run", type=base.PATH)
@click.argument("out", type=base.PATH)
@click.option("--data", required=True, type=base.TABLE, metavar="DATA", help=SERIES)
@base.overwrite_option("Replace an existing OUT.")
@base.json_option
def embed(run: str, out: str, data: str, overwrite: bool, as_json: bool) -> None:
    """Write the representations of series by RUN, a run of `stoker train timehut`, to OUT (.npy): one row per series, float32.

    \b
    stoker timehut embed runs/Chinatown embeddings.npy --data new.tsv
    """
    from stoker_recipes.timehut import load_encoder, read_series

    path = base.check_new_file("OUT", out, (".npy",), overwrite=overwrite)
    rows = load_encoder(run)(read_series(data).values)
    disk.write_file(path, disk.npy_bytes(rows))
    if as_json:
        base.print_json({"path": out, "series": len(rows), "values": rows.shape[1]})
        return
    click.echo(f"{len(rows):,} series -> {rows.shape[1]:,} values each")
    base.report(f"written: {out}")
    base.report(printable(f"next: numpy.load({out!r})"))


def _open_run(folder: Path, **options: Any) -> TrainedRun:
    from stoker_recipes.timehut.predicting import open_run

    return open_run(folder, **options)


RECIPE = Recipe(commands={"train": train, "tune search": search}, open_run=_open_run)
