"""`stoker train`: train as a configuration or a recipe says, or resume a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker import extend
from stoker._text import printable
from stoker.cli import command as base
from stoker.cli.training import STOPPED, is_first, leave_ranks, saying_how_to_resume, show_fields, values_of

if TYPE_CHECKING:
    from stoker.train.fit import Result


def _recipe_of(args: list[str]) -> tuple[str, list[str]] | None:
    """The recipe that is named, of the run that --resume names, or of the configuration that is given; and its arguments."""
    following = dict(pairwise(args))
    folder = following.get("--resume") or next((arg.partition("=")[2] for arg in args if arg.startswith("--resume=")), None)
    if folder is not None:
        recipe = extend.recipe_of_run(Path(folder))
        return None if recipe is None else (recipe, args)
    if named := base.recipe_named(args):
        return named
    if "-" in args:  # the configuration names the recipe, so it is read before the arguments are parsed
        args[args.index("-")] = base.save_stdin(".yaml", click.get_current_context())
    files = [Path(arg) for arg in args if Path(arg).suffix in (".yaml", ".yml", ".json") and Path(arg).is_file()]
    owners = [name for path in files if (name := _owner_of(path)) is not None]
    return (owners[0], args) if owners else None


def _owner_of(path: Path) -> str | None:
    """The recipe that a configuration is for; recipes are imported only where the file has a key that `Config` does not know."""
    from stoker.experiment.config import Config
    from stoker.experiment.parse import read_document

    tree = read_document(path).tree
    if tree.keys() <= set(Config.__struct_fields__):
        return None
    return next((name for name in extend.registered("recipes") if extend.recipe(name).owns_config(tree)), None)


@click.command("train", cls=base.Command, doing="training {config|resume}", version="train", recipe_of=_recipe_of)
@click.argument("config", required=False, type=base.CONFIG)
@base.set_option
@base.resume_option
@click.option("--continue", "continues", is_flag=True, help="Resume the run of CONFIG's folder, if it has one; otherwise begin it.")
@click.option("--allow", multiple=True, metavar="NAME", help="With --resume: a value that may differ from the run so far.")
@base.overwrite_option("Replace the run that the folder holds; files that stoker did not write stay.")
@click.option("--fields", is_flag=True, help="Show all that a configuration may hold.")
@base.json_option
def command(
    config: str | None, overrides: tuple[str, ...], resume: str | None, continues: bool, allow: tuple[str, ...], overwrite: bool,
    fields: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train as CONFIG (YAML or JSON) says. Its folder gets checkpoints, metrics, and the configuration with all its values.

    A NAME is a path like data.batch_size, or the end of one that only one value has. Ctrl-C finishes the step, saves and stops.
    Installed recipes have versions of their own: `stoker train RECIPE --help`.

    \b
    stoker train config.yaml
    stoker train config.yaml --set batch_size=512 --set model=gru
    stoker train config.yaml --set execution.measured=true
    stoker train --resume runs/config
    torchrun --nproc-per-node 2 -m stoker train config.yaml
    torchrun --nnodes 2:4 --rdzv-id job1 --rdzv-endpoint HOST:29400 --max-restarts 100 -m stoker train config.yaml
    """
    if fields:
        from stoker.experiment.config import Config

        show_fields(Config)
        return
    if (config is None) == (resume is None):
        raise click.UsageError("Give a CONFIG, or --resume FOLDER.")
    if continues and (config is None or overwrite):
        raise click.UsageError(f"--continue is for a CONFIG, not for {'--overwrite' if overwrite else '--resume'}.")
    if allow and resume is None:
        raise click.UsageError("--allow is for --resume: a new run has nothing to differ from.")
    if overwrite and config is None:
        raise click.UsageError("--overwrite is for a new run, not for --resume.")
    from stoker.experiment import load, run

    source = load(config, overrides) if config is not None else resume or ""
    folder = Path(source if isinstance(source, str) else source.train.folder or "")
    with saying_how_to_resume(folder):
        result = run(
            source,
            overrides=overrides if config is None else (),
            resume=config is None or continues,
            allow=allow,
            overwrite=overwrite,
            progress=base.shows_progress(),
            report=base.report,
        )
    if is_first():
        _show(result, folder, as_json=as_json)
    leave_ranks()


def _show(result: Result, folder: Path, *, as_json: bool) -> None:
    """How it ended."""
    rate = result.step / result.seconds if result.seconds else 0.0
    if as_json:
        values = values_of(result, "stopped", "step", "epoch", "metrics", "best", "best_step", "seconds", "wait")
        base.print_json({"folder": str(folder), **values, "steps_per_second": rate})
        return
    from rich.console import Console
    from rich.text import Text

    table = base.new_table()
    table.add_column("of the last epoch", no_wrap=True)
    table.add_column("", justify="right")
    for name, value in result.metrics.items():
        table.add_row(printable(name), f"{value:.6g}")
    if result.best is not None:
        table.add_row("best", f"{result.best:.6g}")
    console = Console(highlight=False)
    console.print(table)
    ended = f"{STOPPED.get(result.stopped, result.stopped)}: {result.epoch:,} epochs, {result.step:,} steps"
    console.print(Text(f"{ended}, {rate:,.1f} per second, {result.wait:.1%} of the time spent waiting for data"), soft_wrap=True)
    shown = printable(str(folder))
    console.print(Text(f"run: {shown}   next: stoker predict {shown} --data NEW"), soft_wrap=True)
