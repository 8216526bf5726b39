"""`stoker train`: a configuration becomes a run, and a run that was stopped goes on."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stoker._text import printable
from stoker.cli.paths import PATH
from stoker.errors import ConfigError, OptionError, StokerError

if TYPE_CHECKING:
    from stoker.experiment.config import Config
    from stoker.train.loop import Result
    from stoker.train.trainer import Trainer

CONFIG_NAME = "config.yaml"
RECIPE_NAME = "recipe.json"

RECIPES = {"time-moe": "stoker.cli.train_time_moe", "tfa": "stoker.cli.train_tfa"}
"""Recipes by name, and the file whose `command` trains each: `stoker train NAME …`. Their runs have a recipe.json; a configuration
of one is known by its keys."""

COMPARED = {
    "data": ("data", "valid", "model"),
    "split": ("data", "valid", "model"),
    "model": ("model",),
    "loss": ("loss", "model"),
    "optimizer": ("optimizer",),
    "optimizer.name": ("optimizer", "config.optimizer"),
    "optimizer.lr": ("config.lr",),
    "optimizer.weight_decay": ("config.weight_decay",),
    "schedule": ("schedule", "config.schedule"),
    "data.batch_size": ("data", "schedule"),
    "train.epochs": ("schedule",),
    "train.seed": ("data", "valid", "run"),
    "train.precision": ("setup.precision",),
    "train.graph": ("setup.graph",),
    "train.compile": ("setup.compile",),
    "train.fused": ("setup.fused",),
    "train.grad_accum_steps": ("config.accumulate", "schedule"),
    "train.max_grad_norm": ("config.clip",),
    "train.ema": ("config.ema",),
    "train.guard": ("config.guard",),
    "train.early_stopping": ("run",),
}
"""Fields of a configuration, and those of a trainer that follow from them. What is allowed here is compared by the configuration;
the trainer compares what a configuration does not say: values of a store, code of functions."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run."""

    config: Config
    folder: Path
    resume: bool
    allow: tuple[str, ...] = ()
    """What may differ from the run that goes on, as a trainer calls it."""
    overwrite: bool = False
    """Whether a run that is there is replaced."""


class _Train(click.Command):
    """Hands over to the command of a recipe where its name, or the folder of one of its runs, is given."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        name = args[0] if args else None
        recipe = name if name in RECIPES else _recipe_of(args)
        if recipe is None:
            return super().make_context(info_name, args, parent, **extra)
        command: click.Command = importlib.import_module(RECIPES[recipe]).command
        return command.make_context(f"{info_name} {recipe}", args[1:] if name == recipe else args, parent, **extra)


def _recipe_of(args: list[str]) -> str | None:
    """The recipe of the run that --resume names, or of the configuration that is given."""
    from stoker.experiment.parse import read_document
    from stoker.recipes.tfa.settings import is_tfa

    for arg in args:
        if Path(arg).suffix in (".yaml", ".yml", ".json") and Path(arg).is_file() and is_tfa(read_document(Path(arg)).tree):
            return "tfa"
    following = dict(pairwise(args))
    folder = following.get("--resume") or next((arg.partition("=")[2] for arg in args if arg.startswith("--resume=")), None)
    return None if folder is None else recipe_of_run(Path(folder))


def recipe_of_run(folder: Path) -> str | None:
    """The recipe that a run is of; None where it is of a configuration."""
    path = folder / RECIPE_NAME
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes()).get("recipe")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error
    if found not in RECIPES:
        raise ConfigError(f"{path} is of the recipe {found!r}; this stoker knows {', '.join(RECIPES)}.")
    return str(found)


@click.command("train", cls=_Train, short_help="Train a model as a configuration says, or a recipe.")
@click.argument("config", required=False, type=PATH)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Set a value of the configuration.")
@click.option(
    "--speed",
    type=click.Choice(["exact", "measured"]),
    help="What is chosen by measuring: exact (default) changes no bit of the weights, measured is whatever is faster.",
)
@click.option("--resume", type=PATH, metavar="FOLDER", help="Resume the run of this folder.")
@click.option("--allow", multiple=True, metavar="NAME", help="With --resume: a value that may differ from the run so far.")
@click.option("--overwrite", is_flag=True, help="Replace the run that the folder holds; files that stoker did not write stay.")
@click.option("--fields", is_flag=True, help="Show all that a configuration may hold.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    config: str | None,
    assignments: tuple[str, ...],
    speed: str | None,
    resume: str | None,
    allow: tuple[str, ...],
    overwrite: bool,
    fields: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train as CONFIG (YAML or JSON) says. Its folder gets checkpoints, metrics, and the configuration with all its values.

    A NAME is a path like data.batch_size, or the end of one that only one value has. Ctrl-C finishes the step, saves and stops.

    \b
    stoker train config.yaml
    stoker train config.yaml --set batch_size=512 --set model=gru
    stoker train time-moe --help
    stoker train tfa.yaml
    stoker train --resume runs/config
    torchrun --nproc-per-node 2 -m stoker train config.yaml
    """
    if fields:
        _show_fields()
        return
    if (config is None) == (resume is None):
        raise click.UsageError("Give a CONFIG, or --resume FOLDER.")
    if allow and resume is None:
        raise click.UsageError("--allow is for --resume: a new run has nothing to differ from.")
    if speed is not None:
        assignments = (*assignments, f"train.speed={speed}")
    if overwrite and config is None:
        raise click.UsageError("--overwrite is for a new run, not for --resume.")
    plan = (
        _new(Path(config), assignments, overwrite=overwrite)
        if config is not None
        else _resumed(Path(resume or ""), assignments, allow)
    )
    _run(plan, quiet=quiet or as_json, as_json=as_json)


def _show_fields() -> None:
    from msgspec.inspect import StructType, type_info

    from stoker.experiment.config import Config
    from stoker.experiment.parse import explain

    info = type_info(Config)
    if isinstance(info, StructType):
        click.echo("\n".join(explain(info)))


def _new(path: Path, assignments: Sequence[str], *, overwrite: bool) -> Plan:
    """A run of its own; its folder must not have another."""
    from stoker.experiment.parse import read_config, to_yaml

    config = read_config(path, assignments=assignments)
    folder = Path(config.train.folder or f"runs/{path.stem}")
    has_run = (folder / "run.json").exists()
    if has_run and not overwrite:
        raise OptionError(
            f"{folder} has a run already. Go on with it (stoker train --resume {folder}), choose another (--set folder=…), "
            f"or replace it (--overwrite)."
        )
    config = _in_folder(config, folder)
    kept = folder / CONFIG_NAME
    if not has_run and folder.exists():
        from stoker.train.run import check_new

        check_new(folder)
        if kept.exists() and kept.read_bytes() != to_yaml(config):
            raise OptionError(f"{kept} is there, but no run.json says that it is of a run of stoker. Choose another folder.")
    return Plan(config=config, folder=folder, resume=False, overwrite=overwrite)


def _resumed(folder: Path, assignments: Sequence[str], allow: Sequence[str]) -> Plan:
    """The run of a folder, with the configuration that it keeps; a value that differs must be allowed by name."""
    from stoker.experiment.config import Config
    from stoker.experiment.parse import check, find, known_paths, override, read_saved, to_tree
    from stoker.train import state_dict
    from stoker.train.fingerprint import GROUPS

    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run. Begin one: stoker train CONFIG.")
    document = read_saved(folder)
    # A folder may have been moved since.
    saved = _in_folder(check(document, Config), folder)
    config = _in_folder(check(override(document, assignments, Config), Config), folder)
    known = known_paths(Config)
    theirs = [name for name in allow if tuple(name.split(".")) not in known and name.partition(".")[0] in (*GROUPS, "setup")]
    allowed = [".".join(find(name, known, option="--allow")) for name in allow if name not in theirs]
    state_dict.check_facts(to_tree(saved), to_tree(config), where=str(folder), allow=allowed)
    for ours, names in COMPARED.items():
        if any(name == ours or ours.startswith(f"{name}.") or name.startswith(f"{ours}.") for name in allowed):
            theirs.extend(names)
    return Plan(config=config, folder=folder, resume=True, allow=tuple(theirs))


def _in_folder(config: Config, folder: Path) -> Config:
    train = msgspec.structs.replace(config.train, folder=str(folder))
    return msgspec.structs.replace(config, train=train)


def _run(plan: Plan, *, quiet: bool, as_json: bool) -> None:
    from stoker import _disk
    from stoker._kernels import ANNOUNCE
    from stoker.cli.main import Terminated
    from stoker.experiment.build import choose_device, find_ranks, make_trained, open_data
    from stoker.experiment.config import Own
    from stoker.experiment.models import blaming
    from stoker.experiment.parse import to_yaml

    ranks = find_ranks()
    config = plan.config
    if not quiet:
        os.environ.setdefault(ANNOUNCE, "1")  # that kernels are compiled is said in a log file too, not on a terminal alone
    with _within_memory():
        fed = open_data(config, choose_device(config, ranks.local_rank))
        trainer = _trainer(
            plan, make_trained(config, fed), device=fed.train.device, shows=ranks.is_first and not quiet, writes=ranks.is_first
        )
    if ranks.is_first:
        if not as_json:
            for line in str(fed.train).splitlines():
                click.echo(printable(line))
        _disk.make_folder(plan.folder)
        _disk.write_file(plan.folder / CONFIG_NAME, to_yaml(config))
    try:
        with blaming(*(one.function for one in (config.model, config.loss) if isinstance(one, Own))), _within_memory():
            result = trainer.fit(fed.train, valid=fed.valid, epochs=config.train.epochs, resume=plan.resume, allow=plan.allow)
    except (KeyboardInterrupt, Terminated) as stop:
        if ranks.is_first:
            click.echo(stopped_line(plan.folder), err=True)
        sys.exit(130 if isinstance(stop, KeyboardInterrupt) else 143)
    if ranks.is_first:
        _show(result, plan.folder, as_json=as_json)
    if trainer.ranks.together:
        # All is saved and said. In one of some twenty ends torch's process group aborts the interpreter as it takes itself apart.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@contextlib.contextmanager
def _within_memory() -> Iterator[None]:
    """What does not fit into memory is one line; torch says it by errors of several kinds."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = (str(error).splitlines() or [""])[0]
        words = ("memory", "Storage size", "numel: integer multiplication overflow", "array is too big")
        if isinstance(error, StokerError) or not (isinstance(error, MemoryError) or any(word in text for word in words)):
            raise
        reason = text.rpartition("] ")[2][:200] or "no memory is left"
        raise OptionError(
            f"the training does not fit into memory ({reason}). Lower data.batch_size or the size of the model."
        ) from error


def stopped_line(folder: Path, *, needs: Sequence[str] = (CONFIG_NAME, RECIPE_NAME)) -> str:
    """What a run that was stopped has saved, and how to resume it, which takes one of the files that it `needs`.

    Before its first step there is nothing to save, and a second Ctrl-C does not wait for a save.
    """
    from stoker.train.checkpoint import saved_step

    step, again = saved_step(folder / "checkpoints"), f"stoker train --resume {printable(str(folder))}"
    if step is not None:
        return f"stoker: stopped. The run is saved at step {step:,}. Resume it: {again}"
    is_known = any((folder / name).exists() for name in needs)
    return f"stoker: stopped before anything was saved. Begin again: {again if is_known else 'the same command'}"


def _trainer(plan: Plan, trained: Any, *, device: Any, shows: bool, writes: bool) -> Trainer:
    from stoker.experiment.models import make_optimizer, make_schedule
    from stoker.experiment.parse import to_tree
    from stoker.train.loggers import make_writer
    from stoker.train.metrics import AUC, MAE, MSE, Accuracy
    from stoker.train.schedule import EarlyStopping
    from stoker.train.trainer import Trainer

    config, train = plan.config, plan.config.train
    makers: Mapping[str, Any] = {"mae": MAE, "mse": MSE, "accuracy": Accuracy, "auc": AUC}
    stopping = train.early_stopping
    model = trained.model.to(device)
    trainer = Trainer(
        model,
        trained.loss,
        partial(make_optimizer, config.optimizer),
        precision=train.precision,
        grad_accum_steps=train.grad_accum_steps,
        max_grad_norm=train.max_grad_norm,
        ema=train.ema,
        graph=train.graph,
        compile=train.compile,
        fused=train.fused,
        speed=train.speed,
        setup=train.setup,
        activation_checkpointing=train.activation_checkpointing,
        schedule=make_schedule(config.schedule),
        early_stopping=None
        if stopping is None
        else EarlyStopping(stopping.metric, patience=stopping.patience, mode=stopping.mode, min_delta=stopping.min_delta),
        metrics={name: makers[name]() for name in train.metrics},
        guard=train.guard,
        folder=plan.folder,
        overwrite=plan.overwrite,
        save_every=train.save_every,
        keep_checkpoints=train.keep_checkpoints,
        max_seconds=train.max_seconds,
        log_every=train.log_every,
        loggers=[make_writer(name, folder=plan.folder) for name in train.loggers] if writes else (),
        device=device,
        parallel=train.parallel,
        seed=train.seed,
        config=to_tree(config),
        progress=shows,
    )
    trainer.speed_option = "--speed measured"
    return trainer


def _show(result: Result, folder: Path, *, as_json: bool) -> None:
    """How it ended."""
    rate = result.step / result.seconds if result.seconds else 0.0
    if as_json:
        told = {
            "folder": str(folder),
            "stopped": result.stopped,
            "step": result.step,
            "epoch": result.epoch,
            "metrics": result.metrics,
            "best": result.best,
            "best_step": result.best_step,
            "seconds": result.seconds,
            "steps_per_second": rate,
            "wait": result.wait,
        }
        click.echo(json.dumps(told))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("of the last epoch", no_wrap=True)
    table.add_column("", justify="right")
    for name, value in result.metrics.items():
        table.add_row(printable(name), f"{value:.6g}")
    if result.best is not None:
        table.add_row("best", f"{result.best:.6g}")
    console = Console(highlight=False)
    console.print(table)
    words = {"finished": "finished", "early": "stopped early", "budget": "stopped by max_seconds"}
    ended = f"{words.get(result.stopped, result.stopped)}: {result.epoch:,} epochs, {result.step:,} steps"
    console.print(Text(f"{ended}, {rate:,.1f} a second, {result.wait:.1%} of the time spent waiting for data"), soft_wrap=True)
    console.print(Text(f"run: {printable(str(folder))}"), soft_wrap=True)
