"""What `stoker train` and its versions for recipes share: settings by `--set`, resuming, several processes, and how a run ended."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._signals import Terminated
from stoker._text import printable
from stoker.cli import command as base
from stoker.experiment.parse import CONFIG_NAME as CONFIG_NAME
from stoker.extend import RECIPE_NAME

if TYPE_CHECKING:
    from stoker.train.fit import Result

STOPPED = {"finished": "finished", "early": "stopped early", "budget": "stopped by max_seconds"}
"""What `Result.stopped` is in words."""


def settings_option(settings: str, *, shows_fields: bool = True) -> base.Decorator:
    """--set and --fields of a recipe whose settings are the fields of a record, given as "module:name"."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            show_fields(_record(settings))
            ctx.exit()

    text = "Set a field of the settings. May be repeated; `stoker train RECIPE --fields` shows all."
    assign = click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help=text)
    fields = click.option(
        "--fields", is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show all settings with their defaults."
    )
    return (lambda command: assign(fields(command))) if shows_fields else assign


def run_options(settings: str, data: str, *, kind: base.PathType = base.PATH, metavar: str = "DATA") -> base.Decorator:
    """Return what `stoker train` of a recipe takes: --data, --set, --fields, --folder, --resume, --device and --json."""
    data_option = click.option("--data", type=kind, metavar=metavar, help=data)
    options = (data_option, settings_option(settings), base.folder_option, base.resume_option, base.device_option, base.json_option)
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def _record(name: str) -> type:
    from importlib import import_module

    module, _, attribute = name.partition(":")
    record: type = getattr(import_module(module), attribute)
    return record


def read_settings(assignments: Sequence[str], settings: str) -> dict[str, Any]:
    """Return the values of `--set NAME=VALUE`, checked by the fields of a record."""
    from stoker.experiment.parse import read_assignments

    values = read_assignments(assignments, _record(settings))
    if fixed := values.keys() & {"recipe", "data"}:
        raise click.UsageError(f"--set {fixed.pop()} cannot be set: the recipe is named first, and --data names the data.")
    return values


def show_fields(record: type) -> None:
    """Print the fields of a record, with their types and defaults."""
    from stoker.experiment.parse import explain

    click.echo("\n".join(explain(record)))


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
def saying_how_to_resume(folder: Path) -> Iterator[None]:
    """Where a signal stops the run, say what is saved and how to resume it.

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
            is_known = any((folder / name).exists() for name in (CONFIG_NAME, RECIPE_NAME))
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


def train_or_resume(recipe: Any, source: Any, folder: Path, settings: dict[str, Any], /, **common: Any) -> Any:
    """Train on `source`, or without one resume the run in a folder."""
    with saying_how_to_resume(folder):
        if source:
            return recipe.train(source, folder=folder, progress=base.shows_progress(), **common, **settings)
        return recipe.resume(folder, progress=base.shows_progress(), **common, **settings)


def folder_of(data: str | None, *, resume: str | None, folder: str | None) -> Path:
    """Return the folder of a run: of the one to resume, as given, or below `runs` by the name of the data."""
    name = Path(os.path.abspath(data or "")).name  # noqa: PTH100 - links are not followed: they may form a loop
    return Path(resume or folder or f"runs/{name.partition('.')[0]}")


def values_of(result: Result, *names: str) -> dict[str, Any]:
    """Return attributes by name, for JSON."""
    return {name: getattr(result, name) for name in names}
