"""`stoker export`: the best model of a run becomes a program, checked on a golden batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker import extend
from stoker._text import printable, readable_bytes
from stoker.cli import command as base
from stoker.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from stoker.experiment.build import Fed

GOLDEN_ROWS = 64


def _recipe_of(args: list[str]) -> tuple[str, list[str]] | None:
    """The recipe of the run that is exported; its own version of this command parses the arguments."""
    recipes = (extend.recipe_of_run(Path(arg)) for arg in args if not arg.startswith("-"))
    name = next(recipes, None)
    return None if name is None else (name, args)


@click.command("export", cls=base.Command, doing="exporting the model of {run}", version="export", recipe_of=_recipe_of)
@click.argument("run", type=base.PATH)
@click.argument("path", type=base.PATH)
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@base.overwrite_option("Replace PATH and the golden batch beside it.")
@base.json_option
def command(run: str, path: str, latest: bool, overwrite: bool, as_json: bool) -> None:
    """Export the model of RUN (the folder of a run) to PATH as a program that torch.export.load reads, for batches of any size.

    Where PATH ends in .onnx, it is a file of ONNX. It has the EMA of the weights where the run kept one, and takes what the feed
    delivers. The program is run on samples of the validation (or training) data before it is written, and must answer as the model
    does; samples and answers stay beside it. Runs of recipes have versions of their own: `stoker export RUN --help`.

    \b
    stoker export runs/first model.pt2
    stoker export runs/first model.onnx
    """
    from stoker.experiment.build import make_trained, open_data
    from stoker.experiment.config import Config
    from stoker.experiment.models import naming_known
    from stoker.experiment.parse import CONFIG_NAME, check, read_document
    from stoker.train.export import export_model, find_trained, golden_path, load_weights

    folder = Path(run)
    target = base.check_new_file("PATH", path, overwrite=overwrite)
    base.check_new_file("PATH", str(golden_path(target)), overwrite=overwrite)
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run of `stoker train`.", path=folder)
    trained = find_trained(folder, latest=latest)
    config = check(read_document(folder / CONFIG_NAME), Config)
    fed = open_data(config, "cpu")
    model, _ = make_trained(config, fed)
    averaged = load_weights(model, trained)
    golden = _golden(fed, own=config.model.__struct_config__.tag == "own")
    with naming_known():
        exported = export_model(model, golden, target, onnx=target.suffix == ".onnx")
    if as_json:
        values = {"path": str(exported.path), "golden": str(exported.golden), "num_bytes": exported.num_bytes}
        values |= {"step": trained.step, "averaged": averaged, "rows": exported.rows, "difference": exported.difference}
        base.print_json(values)
        return
    weights = "averaged weights" if averaged else "weights"
    click.echo(f"exported the {weights} of step {trained.step:,}, {readable_bytes(exported.num_bytes)}: {printable(path)}")
    off = f"largest difference from the model {exported.difference:.2g}"
    click.echo(f"checked on {exported.rows} samples, {off}: {printable(str(exported.golden))}")
    base.report(f"next: {'onnxruntime.InferenceSession' if target.suffix == '.onnx' else 'torch.export.load'}({path!r})")


def _golden(fed: Fed, *, own: bool) -> dict[str, torch.Tensor]:
    """Some real samples, with the entries that the model reads; for your own model, all except targets."""
    batch = next(iter(fed.valid or fed.train))
    known = fed.task.known_entries
    ahead = ("valid", "target_mask", *(name for name in batch if name.endswith(("_target", "_target_observed"))))
    names = [name for name in batch if name not in ahead or name in known]
    rows = min(GOLDEN_ROWS, max(2, int(batch["valid"].sum())))
    return {name: batch[name][:rows] for name in (names if own else fed.task.entries)}
