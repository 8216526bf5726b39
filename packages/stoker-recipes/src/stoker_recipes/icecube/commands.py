"""What IceCube registers with Stoker: pack, train, batch sizes, `stoker icecube make`, and predictions of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stoker.cli.command as base
import stoker.cli.training as shared
from stoker.cli.pack import show_packed
from stoker.cli.tune import values_of_choice
from stoker.extend import Recipe, printable

if TYPE_CHECKING:
    from stoker.experiment import TrainedRun
    from stoker_recipes.icecube.training import TrainedIceCube

SETTINGS = "stoker_recipes.icecube.settings:IceCubeSettings"
STORE = "A store that `stoker pack --recipe icecube` made."
COUNT = click.IntRange(min=1, max=2**31)


@click.command("pack", cls=base.Command, doing="packing {source} into {store}")
@click.argument("source", type=base.PATH)
@click.argument("store", type=base.PATH)
@click.option("--recipe", required=True, metavar="NAME", help="icecube.")
@base.choice_option("--split", choices=["train", "test"], help="Which files to pack.")
@click.option("--batches", metavar="N-M", help="Numbers of the files to pack, like 1-650. [default: all that the metadata name]")
@base.overwrite_option("Replace an existing store.", "replace")
@base.json_option
def pack(source: str, store: str, recipe: str, as_json: bool, **options: Any) -> None:
    """Pack the files of the IceCube competition in the folder SOURCE, as downloaded, into the folder STORE.

    SOURCE has train_meta.parquet (or train_meta/batch_*.parquet), train/batch_*.parquet and sensor_geometry.csv. The store has a
    series per event. Memory stays below 1 GB. If a pack was killed, the same command resumes it.

    \b
    stoker pack icecube/ ice.stoker --recipe icecube
    stoker pack icecube/ train.stoker --recipe icecube --batches 1-650
    stoker pack icecube/ test.stoker --recipe icecube --split test
    """
    from stoker_recipes.icecube import pack_events

    with base.bar("events") as show:
        packed = pack_events(source, store, progress=show, **options)
    show_packed(packed, store, f"{packed.num_steps:,} pulses", as_json=as_json)


@click.command("icecube", cls=base.Command, doing="training with {data|resume}", short_help="Train a model of neutrino directions.")
@shared.run_options(SETTINGS, STORE, metavar="STORE")
def train(
    data: str | None, overrides: tuple[str, ...], folder: str | None, resume: str | None, device: str | None, as_json: bool
) -> None:
    """Train a transformer that predicts the direction of IceCube events.

    Defaults are those of the published 5M model. The folder gets checkpoints and metrics. Ctrl-C finishes the step, saves and stops.

    \b
    stoker pack icecube/ ice.stoker --recipe icecube
    stoker train icecube --data ice.stoker --set size=19m --set where="batch_id <= 650" --set valid="batch_id == 651"
    stoker train icecube --data ice.stoker --set init=runs/ice --set where="num_steps >= 500" --set max_doms=512
    stoker train --resume runs/ice
    stoker predict runs/ice --data test.stoker --out submission.csv
    """
    from stoker_recipes.icecube import training

    shared.check_call(data, "--data STORE", resume=resume, folder=folder)
    where = shared.folder_of(data, resume=resume, folder=folder)
    done = shared.train_or_resume(training, data, where, shared.read_settings(overrides, SETTINGS), device=device)
    if shared.is_first():
        _show(done, where, as_json=as_json)
    shared.leave_ranks()


def _show(done: TrainedIceCube, folder: Path, *, as_json: bool) -> None:
    result = done.result
    if as_json:
        values = shared.values_of(result, "stopped", "step", "epoch", "metrics", "best", "best_step", "seconds", "wait")
        base.print_json({"folder": str(folder), "events_per_second": done.events_per_second, **values})
        return
    for name, value in result.metrics.items():
        click.echo(f"{name:<12}{value:.6g}")
    waiting = f"{result.wait:.1%} of the time spent waiting for data"
    rate = f"{done.events_per_second:,.0f} events per second"
    click.echo(f"{shared.STOPPED[result.stopped]}: {result.step:,} steps in {result.seconds:,.0f} s, {rate}, {waiting}")
    click.echo(printable(f"run: {folder}   next: stoker predict {folder} --data STORE --out submission.csv"))


@click.command("icecube", cls=base.Command, doing="measuring batch sizes with {data}")
@click.option("--data", type=base.PATH, required=True, metavar="STORE", help=STORE)
@shared.settings_option(SETTINGS, shows_fields=False)
@click.option("--largest", type=int, metavar="N", help="The largest size to try.")
@base.json_option
def tune_batch(data: str, overrides: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure batch sizes of the IceCube model, and choose the smallest within 5 % of the best throughput.

    \b
    stoker tune batch icecube --data ice.stoker --set size=19m --largest 8192
    """
    from stoker_recipes.icecube.tuning import tune_batch_size

    settings = shared.read_settings(overrides, SETTINGS)
    choice = tune_batch_size(data, report=base.announce, **options, **settings)
    if as_json:
        base.print_json(values_of_choice(choice))
        return
    click.echo(str(choice))
    words = "".join(f" --set {assignment}" for assignment in overrides)
    click.echo(printable(f"next: stoker train icecube --data {data}{words} --set batch_size={choice.size}"))


@click.group("icecube", cls=base.CommandGroup, short_help="Make neutrino events.")
def icecube() -> None:
    """Make data for `stoker train icecube`."""


@icecube.command("make", cls=base.Command, doing="making events in {folder}", short_help="Make neutrino events.")
@click.argument("folder", type=base.PATH)
@click.option("--files", type=COUNT, default=66, show_default=True, metavar="N", help="Number of files with pulses.")
@click.option("--events", type=COUNT, default=1500, show_default=True, metavar="N", help="Events per file.")
@base.json_option
def make(folder: str, files: int, events: int, as_json: bool) -> None:
    """Write train_meta.parquet, train/batch_*.parquet and sensor_geometry.csv to FOLDER, as the IceCube competition has them.

    \b
    stoker icecube make icecube/                              # many small files
    stoker icecube make few/ --files 5 --events 18000         # few large files
    stoker pack icecube/ ice.stoker --recipe icecube
    """
    from stoker_recipes.icecube import make_events

    with base.bar("pulses") as show:
        made = make_events(folder, files=files, events=events, progress=show)
    if as_json:
        base.print_json({"path": str(made), "files": files, "events": files * events})
        return
    click.echo(f"wrote {files * events:,} events in {files:,} files: {printable(str(made))}")
    base.report(printable(f"next: stoker pack {folder} ice.stoker --recipe icecube"))


def _open_run(folder: Path, **options: Any) -> TrainedRun:
    from stoker_recipes.icecube.predicting import open_run

    return open_run(folder, **options)


RECIPE = Recipe(commands={"pack": pack, "train": train, "tune batch": tune_batch}, open_run=_open_run)
