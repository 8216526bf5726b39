"""`stoker tune`: the batch size, a search for hyperparameters, and the fastest way to run a config."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable, printable_lines
from stoker.cli import command as base
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.tune.batch_sizes import BatchSizeChoice
    from stoker.tune.study import Study

STUDY_NAME = "study.journal"
BATCH_RECIPES: dict[str, click.Command] = {}
SEARCH_RECIPES: dict[str, click.Command] = {}


@click.group("tune", cls=base.CommandGroup)
def command() -> None:
    """Measure instead of guessing: the batch size, hyperparameters, and how a configuration runs fastest."""


@command.command(
    "batch",
    cls=base.Command,
    doing="measuring batch sizes of {config}",
    recipes=BATCH_RECIPES,
    short_help="Measure batch sizes, and choose by throughput.",
)
@click.argument("config", type=base.CONFIG)
@base.set_option
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="How much slower than the best size it may be.")
@click.option("--largest", type=int, metavar="N", help="The largest size to try.")
@click.option("--min-steps-per-epoch", type=int, default=20, show_default=True, metavar="N", help="Steps that an epoch keeps.")
@click.option("--keep-effective-batch", is_flag=True, help="Keep the samples per update, by gradient accumulation.")
@click.option("--out", type=base.PATH, metavar="FILE.yaml", help="Write the configuration with the new batch size.")
@base.overwrite_option("Replace the file of --out.")
@base.json_option
def _batch(
    config: str, assignments: tuple[str, ...], tolerance: float, largest: int | None, min_steps_per_epoch: int,
    keep_effective_batch: bool, out: str | None, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure batch sizes of CONFIG, and choose the smallest within 5 % of the best throughput.

    The table has samples per second and memory of each size. The learning rate is not changed; a scaled one is offered.

    \b
    stoker tune batch config.yaml
    stoker tune batch config.yaml --out tuned.yaml
    stoker tune batch icecube --data ice.stoker --size 19m
    """
    import msgspec

    from stoker.experiment import load
    from stoker.tune.batch_sizes import batch_size
    from stoker.tune.configured import steps_of, with_batch_size
    from stoker.tune.run_choices import RunChoices

    if out is not None:
        base.check_new_file("--out", out, overwrite=overwrite)
    given = load(config, assignments)
    make_step, make_batch, num_samples = steps_of(given)
    effective = given.data.global_batch_size or given.data.batch_size * given.train.grad_accum_steps
    choice = batch_size(
        make_step,
        make_batch,
        tolerance=tolerance,
        largest=largest,
        num_samples=num_samples,
        min_steps_per_epoch=min_steps_per_epoch,
        effective_batch=effective if keep_effective_batch else None,
        report=base.announce,
    )
    new = choice.size * choice.grad_accum_steps
    rule: Any = "linear" if given.optimizer.__struct_config__.tag == "sgd" else "sqrt"
    scaled = choice.scaled_lr(given.optimizer.lr, batch_size=effective, rule=rule)
    if out is not None:
        tuned = with_batch_size(given, choice.size)
        tuned = msgspec.structs.replace(tuned, train=msgspec.structs.replace(tuned.train, grad_accum_steps=choice.grad_accum_steps))
        RunChoices(config=tuned, trials=(), changed={}).save(out, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps({**_values_of(choice), "scaled_lr": scaled}))
        return
    click.echo(str(choice))
    if new != effective:
        click.echo(
            f"the effective batch changes from {effective:,} to {new:,}: the {rule} rule would scale the learning rate from "
            f"{given.optimizer.lr:g} to {scaled:.3g} (not changed)"
        )
    click.echo(f"use it: --set batch_size={choice.size}" if out is None else f"written: {printable(out)}")


def _values_of(choice: BatchSizeChoice) -> dict[str, Any]:
    names = ("size", "samples_per_second", "memory", "limit", "grad_accum_steps", "notes")
    of_size = ("size", "samples_per_second", "memory", "fits")
    curve = [{name: getattr(one, name) for name in of_size} for one in choice.curve]
    return {**{name: getattr(choice, name) for name in names}, "curve": curve}


@click.command("icecube", cls=base.Command, doing="measuring batch sizes with {data}")
@click.option("--data", type=base.PATH, required=True, metavar="STORE", help="A store that `stoker pack --recipe icecube` made.")
@click.option("--size", metavar="SIZE", default="5m", show_default=True, help="5m, 10m, 19m, 29m or tiny.")
@click.option("--where", metavar="CONDITION", help='Events to train on, such as "num_steps >= 500". [default: all]')
@click.option("--max-doms", type=int, default=128, show_default=True, metavar="N", help="Most DOMs per event.")
@base.choice_option("--residual", choices=["fp32", "bf16"], help="Type of the residual in bf16.")
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="How much slower than the best size it may be.")
@click.option("--largest", type=int, metavar="N", help="The largest size to try.")
@base.device_option
@base.json_option
def _batch_icecube(data: str, as_json: bool, **options: Any) -> None:
    """Measure batch sizes of the IceCube model, and choose the smallest within 5 % of the best throughput.

    \b
    stoker tune batch icecube --data ice.stoker --size 19m --largest 8192
    """
    from stoker_recipes.icecube.tuning import tune_batch_size

    choice = tune_batch_size(data, report=base.announce, **options)
    if as_json:
        click.echo(json.dumps(_values_of(choice)))
        return
    click.echo(str(choice))
    click.echo(printable(f"use it: stoker train icecube --data {data} --size {options['size']} --batch-size {choice.size}"))


BATCH_RECIPES["icecube"] = _batch_icecube


@command.command(
    "search",
    cls=base.Command,
    doing="searching with {config}",
    recipes=SEARCH_RECIPES,
    short_help="Search hyperparameters within a budget.",
)
@click.argument("config", type=base.CONFIG)
@base.set_option
@click.option("--budget", metavar="TIME", help="60s, 10min, 2h, or a number of trials. [default: from the size of the data]")
@click.option("--space", type=base.CONFIG, metavar="FILE.yaml", help="What to search, if not the section `search:` of CONFIG.")
@click.option("--metric", metavar="NAME", help="What to improve. [default: val_loss]")
@click.option("--direction", type=click.Choice(["minimize", "maximize"]), help="[default: by the name of the metric]")
@click.option("--storage", metavar="FILE|URL", help="Where the study is kept. [default: study.journal, in the folder of the run]")
@click.option("--name", default="search", show_default=True, help="Name of the study in its storage.")
@click.option("--repeats", type=int, metavar="N", help="Repeats with other seeds, which measure the noise. [default: 4]")
@click.option("--allow-constant", is_flag=True, help="Continue when all configurations have the same score.")
@click.option("--out", type=base.PATH, metavar="FILE.yaml", help="Write the configuration with the best values.")
@base.overwrite_option("Replace the file of --out.")
@base.json_option
def _search(
    config: str, assignments: tuple[str, ...], budget: str | None, space: str | None, metric: str | None, direction: str | None,
    storage: str | None, name: str, repeats: int | None, allow_constant: bool, out: str | None, overwrite: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Search the hyperparameters of CONFIG: many short trials, the best of them longer, then new ones near the best.

    What to search is the section `search:` of CONFIG. Ctrl-C keeps the best; the same command continues. Several processes may run it
    at once.

    \b
    search:
      space:
        optimizer.lr: [log, 1e-5, 1e-1]
        model.width: [32, 64, 128]
        model.dropout: [uniform, 0, 0.5]

    \b
    stoker tune search config.yaml --budget 60s
    stoker tune search config.yaml --budget 10min --out best.yaml
    stoker tune search timehut --help
    """
    from stoker.experiment import load
    from stoker.tune.budget import parse_budget
    from stoker.tune.configured import ConfigObjective, read_search
    from stoker.tune.run_choices import RunChoices
    from stoker.tune.search_loop import search

    if out is not None:
        base.check_new_file("--out", out, overwrite=overwrite)
    section, given = read_search(config, space), load(config, assignments)
    metric = metric or section.metric
    wanted: Any = direction or section.direction or ("minimize" if _less_is_better(metric) else "maximize")
    objective = ConfigObjective(config, tuple(assignments), metric, 1.0 if wanted == "minimize" else -1.0)
    budget = budget if budget is not None else section.budget if section.budget is None else str(section.budget)
    parse_budget(budget)
    objective.check()
    where = storage or str(Path(given.train.folder or "runs") / STUDY_NAME)
    base.announce(f"study: {where}" if "@" not in where else f"study: {name}")
    study = search(
        objective,
        section.space,
        budget=budget,
        direction=wanted,
        metric=metric,
        seed=given.train.seed,
        storage=where,
        name=name,
        repeats=repeats if repeats is not None else section.repeats,
        on_constant="warn" if allow_constant else "error",
        report=base.announce,
    )
    if study.has_result and out is not None:
        values = [f"{key}={json.dumps(value)}" for key, value in study.best.params.items()]
        RunChoices(config=load(config, [*assignments, *values]), trials=(), changed={}).save(out, overwrite=overwrite)

    def use(params: dict[str, Any]) -> str:
        if out is not None:
            return f"written: {out}"
        return f"train it: stoker train {base.shown_path(config)} " + " ".join(
            f"--set {key}={json.dumps(value)}" for key, value in params.items()
        )

    _show_study(study, use, where=where, name=name, as_json=as_json)


def _show_study(study: Study, use: Callable[[dict[str, Any]], str], *, where: str | None, name: str, as_json: bool) -> None:
    """Print the result of a search; `use` says how to train with the best values."""
    if as_json:
        best = {"number": study.best.number, "value": study.best.value, "params": study.best.params} if study.has_result else None
        known = {"storage": study.storage, "name": name, "stopped": study.stopped, "best": best, "notes": study.notes}
        click.echo(json.dumps({**known, **study.counts()}))
    else:
        click.echo(printable_lines(str(study)))
        if study.has_result:
            click.echo(printable(use(dict(study.best.params))))
    if study.stopped == "interrupted":
        base.announce(
            "stopped. The same command continues the search." if where else "stopped. Pass --storage FILE to be able to continue."
        )
        raise SystemExit(130)
    if not study.has_result:
        raise OptionError(f"no trial is complete: {study.first_error or 'the budget is too small'}")


def _less_is_better(metric: str) -> bool:
    return not any(word in metric.lower() for word in ("accuracy", "auc", "f1", "r2", "precision", "recall"))


@click.command("timehut", cls=base.Command, doing="searching with {data}")
@click.option(
    "--data", type=base.TABLE, required=True, metavar="FILE", help="Labelled training series: .tsv (UCR), .ts, .arff, or a store."
)
@base.choice_option(
    "--scenario",
    choices=["temp", "amc", "combined"],
    default="combined",
    help="temp: the temperature schedule; amc: the angular margin; combined: both.",
)
@click.option("--budget", metavar="TIME", help="4s, 10min, or a number of trials. [default: from the size of the data]")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Length of a full trial. [default: 160 updates]")
@click.option("--group-size", type=click.IntRange(min=1), default=16, show_default=True, help="Configurations that train at once.")
@click.option("--storage", metavar="FILE|URL", help="Where the study is kept, to continue it. [default: in memory]")
@base.seed_option(0)
@base.device_option
@click.option("--allow-constant", is_flag=True, help="Continue when all configurations have the same score.")
@base.json_option
def _search_timehut(
    data: str, scenario: str, budget: str | None, epochs: int | None, group_size: int, storage: str | None, seed: int,
    device: str | None, allow_constant: bool, as_json: bool,
) -> None:  # fmt: skip
    """Search the temperature and the angular margin of TimeHUT. Configurations train as one population, on the same crops.

    The score is the mean margin of a classifier in repeated cross-validation of the training series: on small sets their accuracy is
    often the same for all configurations.

    \b
    stoker tune search timehut --data Chinatown_TRAIN.tsv --scenario combined --budget 60s
    """
    from stoker.tune.budget import parse_budget
    from stoker.tune.search_loop import search
    from stoker_recipes.timehut.tuning import SPACES, objective_of

    def use(params: dict[str, Any]) -> str:
        flags = " ".join(f"--{key.replace('_', '-')} {value:.6g}" for key, value in params.items())
        return f"train it: stoker train timehut --data {base.shown_path(data)} {flags}"

    parse_budget(budget)
    objective = objective_of(data, epochs=epochs, device=device)
    study = search(
        objective,
        SPACES[scenario],
        budget=budget,
        direction="maximize",
        seed=seed,
        storage=storage,
        name=f"timehut-{scenario}",
        group_size=group_size,
        on_constant="warn" if allow_constant else "error",
        report=base.announce,
    )
    _show_study(study, use, where=storage, name=f"timehut-{scenario}", as_json=as_json)


SEARCH_RECIPES["timehut"] = _search_timehut


@command.command(
    "run", cls=base.Command, doing="measuring how {config} runs fastest", short_help="Measure how a configuration runs fastest."
)
@click.argument("config", type=base.CONFIG)
@base.set_option
@click.option(
    "--out", type=base.PATH, metavar="FILE.yaml", help="Where the new configuration goes. [default: CONFIG with .tuned.yaml]"
)
@base.overwrite_option("Replace the file of --out.")
@base.json_option
def _run(config: str, assignments: tuple[str, ...], out: str | None, overwrite: bool, as_json: bool) -> None:
    """Measure how CONFIG runs fastest here, and write the choices into a new configuration.

    Tried are precision, a fused optimizer, a CUDA graph, compiling, and placement, threads and prefetch of the feed. Each is a paired
    measurement; nothing is chosen while other programs disturb it. CONFIG itself is not changed.

    \b
    stoker tune run config.yaml
    stoker train config.tuned.yaml
    """
    from dataclasses import asdict

    from stoker.experiment import load
    from stoker.tune.run_choices import choose_run

    given = Path(config).name if base.shown_path(config) == "-" else config
    path = out if out is not None else str(Path(given).with_suffix(".tuned.yaml"))
    if Path(path).resolve() == Path(config).resolve() and not overwrite:
        raise OptionError(f"{path} is the configuration itself. Replace it (--overwrite), or give another name.")
    base.check_new_file("--out", path, overwrite=overwrite)
    choices = choose_run(load(config, assignments), report=base.report)
    choices.save(path, overwrite=overwrite)
    if as_json:
        trials = [asdict(one) for one in choices.trials]
        click.echo(json.dumps({"config": path, "changed": dict(choices.changed), "trials": trials}))
        return
    words = ", ".join(f"{key}={value}" for key, value in choices.changed.items())
    click.echo(f"chosen: {words}" if words else "chosen: nothing is faster than what the configuration has")
    click.echo(f"written: {printable(path)}   next: stoker train {printable(path)}")
