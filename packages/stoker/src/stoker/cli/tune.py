"""`stoker tune`: the batch size, and a search for hyperparameters."""

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

STUDY_NAME, NAME = "study.journal", "search"
"""The file of a study in the folder of the run, and its name in there."""


@click.group("tune", cls=base.CommandGroup)
def command() -> None:
    """Measure instead of guessing: the batch size and the hyperparameters."""


@command.command(
    "batch",
    cls=base.Command,
    doing="measuring batch sizes of {config}",
    version="tune batch",
    short_help="Measure batch sizes, and choose by throughput.",
)
@click.argument("config", type=base.CONFIG)
@base.set_option
@click.option("--largest", type=int, metavar="N", help="The largest size to try.")
@click.option("--keep-effective-batch", is_flag=True, help="Keep the samples per update, by gradient accumulation.")
@click.option("--out", type=base.PATH, metavar="FILE.yaml", help="Write the configuration with the new batch size.")
@base.overwrite_option("Replace the file of --out.")
@base.json_option
def _batch(
    config: str, overrides: tuple[str, ...], largest: int | None,
    keep_effective_batch: bool, out: str | None, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure batch sizes of CONFIG, and choose the smallest within 5 % of the best throughput.

    The table has samples per second and memory of each size. The learning rate is not changed; a scaled one is offered.

    \b
    stoker tune batch config.yaml
    stoker tune batch config.yaml --out tuned.yaml
    """
    import msgspec

    from stoker.experiment import load
    from stoker.tune.batch_sizes import batch_size
    from stoker.tune.configured import save_config, steps_of, with_batch_size

    target = None if out is None else base.check_new_file("--out", out, overwrite=overwrite)
    given = load(config, overrides)
    make_step, make_batch, num_samples = steps_of(given)
    effective = given.data.global_batch_size or given.data.batch_size * given.train.grad_accum_steps
    choice = batch_size(
        make_step,
        make_batch,
        largest=largest,
        num_samples=num_samples,
        effective_batch=effective if keep_effective_batch else None,
        report=base.announce,
    )
    new = choice.size * choice.grad_accum_steps
    rule: Any = "linear" if given.optimizer.__struct_config__.tag == "sgd" else "sqrt"
    scaled = choice.scaled_lr(given.optimizer.lr, batch_size=effective, rule=rule)
    if target is not None:
        tuned = with_batch_size(given, choice.size)
        tuned = msgspec.structs.replace(tuned, train=msgspec.structs.replace(tuned.train, grad_accum_steps=choice.grad_accum_steps))
        save_config(tuned, target)
    if as_json:
        base.print_json({**values_of_choice(choice), "scaled_lr": scaled})
        return
    click.echo(str(choice))
    if new != effective:
        click.echo(
            f"the effective batch changes from {effective:,} to {new:,}: the {rule} rule would scale the learning rate from "
            f"{given.optimizer.lr:g} to {scaled:.3g} (not changed)"
        )
    tuned_path = f"{config} --set batch_size={choice.size}" if out is None else out
    click.echo(printable(f"next: stoker train {tuned_path}"))


def values_of_choice(choice: BatchSizeChoice) -> dict[str, Any]:
    """Return the choice of a batch size for JSON."""
    names = ("size", "samples_per_second", "memory", "limit", "grad_accum_steps", "notes")
    of_size = ("size", "samples_per_second", "memory", "fits")
    curve = [{name: getattr(one, name) for name in of_size} for one in choice.curve]
    return {**{name: getattr(choice, name) for name in names}, "curve": curve}


@command.command(
    "search",
    cls=base.Command,
    doing="searching with {config}",
    version="tune search",
    short_help="Search hyperparameters within a budget.",
)
@click.argument("config", type=base.CONFIG)
@base.set_option
@click.option("--budget", metavar="TIME", help="60s, 10min, 2h, or a number of trials. [default: from the size of the data]")
@click.option("--metric", metavar="NAME", help="What to improve. [default: val_loss]")
@click.option("--storage", metavar="FILE|URL", help="Where the study is kept. [default: study.journal, in the folder of the run]")
@click.option("--out", type=base.PATH, metavar="FILE.yaml", help="Write the configuration with the best values.")
@base.overwrite_option("Replace the file of --out.")
@base.json_option
def _search(
    config: str, overrides: tuple[str, ...], budget: str | None, metric: str | None, storage: str | None, out: str | None,
    overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Search the hyperparameters of CONFIG: many short trials, the best of them longer, then new ones near the best.

    What to search is the section `search:` of CONFIG, which may also have `budget`, `metric`, `direction`, `repeats` (with other
    seeds, to measure the noise) and `on_constant: warn`. Ctrl-C keeps the best; the same command continues. Several processes may run
    it at once.

    \b
    search:
      space:
        optimizer.lr: [log, 1e-5, 1e-1]
        model.width: [32, 64, 128]
        model.dropout: [uniform, 0, 0.5]

    \b
    stoker tune search config.yaml --budget 60s
    stoker tune search config.yaml --budget 10min --out best.yaml
    """
    from stoker.experiment import load
    from stoker.tune.budget import parse_budget
    from stoker.tune.configured import ConfigObjective, read_search, save_config
    from stoker.tune.search_loop import search

    target = None if out is None else base.check_new_file("--out", out, overwrite=overwrite)
    section, parsed = read_search(config), load(config, overrides)
    metric = metric or section.metric
    wanted: Any = section.direction or ("minimize" if _less_is_better(metric) else "maximize")
    objective = ConfigObjective(config, tuple(overrides), metric, 1.0 if wanted == "minimize" else -1.0)
    budget = budget if budget is not None else section.budget if section.budget is None else str(section.budget)
    parse_budget(budget)
    objective.check()
    where = storage or str(Path(parsed.train.folder or "runs") / STUDY_NAME)
    base.announce(f"study: {where}" if "@" not in where else f"study: {NAME}")
    study = search(
        objective,
        section.space,
        budget=budget,
        direction=wanted,
        metric=metric,
        seed=parsed.train.seed,
        storage=where,
        name=NAME,
        repeats=section.repeats,
        on_constant=section.on_constant,
        report=base.announce,
    )
    if study.has_result and target is not None:
        values = [f"{key}={json.dumps(value)}" for key, value in study.best.params.items()]
        save_config(load(config, [*overrides, *values]), target)

    def use(params: dict[str, Any]) -> str:
        if out is not None:
            return f"written: {out}   next: stoker train {out}"
        return f"next: stoker train {base.shown_path(config)} " + " ".join(
            f"--set {key}={json.dumps(value)}" for key, value in params.items()
        )

    show_study(study, use, where=where, name=NAME, as_json=as_json)


def show_study(study: Study, use: Callable[[dict[str, Any]], str], *, where: str | None, name: str, as_json: bool) -> None:
    """Print the result of a search; `use` says how to train with the best values."""
    if as_json:
        best = {"number": study.best.number, "value": study.best.value, "params": study.best.params} if study.has_result else None
        known = {"storage": study.storage, "name": name, "stopped": study.stopped, "best": best, "notes": study.notes}
        base.print_json({**known, **study.counts()})
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
        raise OptionError(f"no trial is complete: {study.first_error or 'the budget is too small'}", parameter="budget")


def _less_is_better(metric: str) -> bool:
    return not any(word in metric.lower() for word in ("accuracy", "auc", "f1", "r2", "precision", "recall"))
