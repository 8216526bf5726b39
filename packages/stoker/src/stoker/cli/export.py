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
    from stoker.train.export import Exported

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
@base.model_option
@click.option("--data", type=base.PATH, metavar="STORE", help="With --model: a store with samples to check the program on.")
@base.overwrite_option("Replace PATH and the golden batch beside it.")
@base.json_option
def command(
    run: str, path: str, latest: bool, model: str | None, data: str | None, overwrite: bool, as_json: bool
) -> None:  # fmt: skip
    """Export the model of RUN (the folder of a run) to PATH as a program that torch.export.load reads, for batches of any size.

    Where PATH ends in .onnx, it is a file of ONNX. It has the EMA of the weights where the run kept one, and takes what the feed
    delivers. The program is run on samples of the validation (or training) data before it is written, and must answer as the model
    does; samples and answers stay beside it. A run of stoker.Trainer needs the code of its model (--model) and a store (--data).
    Runs of recipes have versions of their own: `stoker export RUN --help`.

    \b
    stoker export runs/first model.pt2
    stoker export runs/first model.onnx
    stoker export runs/mine model.pt2 --model model.py:make --data new.stoker
    """
    from stoker.experiment.parse import CONFIG_NAME
    from stoker.train.export import golden_path

    folder = Path(run)
    target, is_onnx = base.check_new_file("PATH", path, overwrite=overwrite), Path(path).suffix == ".onnx"
    base.check_new_file("PATH", str(golden_path(target)), overwrite=overwrite)
    if (model is None) != (data is None):
        raise click.UsageError("--model and --data belong together: the code of the model, and a store to check the program on.")
    if model is not None and data is not None:
        step, averaged, exported = _export_own(folder, target, model, data, latest=latest, is_onnx=is_onnx)
    elif (folder / CONFIG_NAME).is_file():
        step, averaged, exported = _export_configured(folder, target, latest=latest, is_onnx=is_onnx)
    else:
        own = (folder / "run.json").is_file()
        advice = " Of a run of stoker.Trainer give the model and a store: --model file.py:function --data STORE." if own else ""
        raise ConfigError(
            f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run of `stoker train`.{advice}", path=folder
        )
    if as_json:
        values = {"path": str(exported.path), "golden": str(exported.golden), "num_bytes": exported.num_bytes}
        values |= {"step": step, "averaged": averaged, "rows": exported.rows, "difference": exported.difference}
        base.print_json(values)
        return
    weights = "averaged weights" if averaged else "weights"
    click.echo(f"exported the {weights} of step {step:,}, {readable_bytes(exported.num_bytes)}: {printable(path)}")
    off = f"largest difference from the model {exported.difference:.2g}"
    click.echo(f"checked on {exported.rows} samples, {off}: {printable(str(exported.golden))}")
    base.report(f"next: {'onnxruntime.InferenceSession' if is_onnx else 'torch.export.load'}({path!r})")


def _export_configured(folder: Path, target: Path, *, latest: bool, is_onnx: bool) -> tuple[int, bool, Exported]:
    """Export the model of a configuration: the step of its weights, whether they are averaged, and what was written."""
    from stoker.experiment.build import make_trained, open_data
    from stoker.experiment.config import Config
    from stoker.experiment.models import naming_known
    from stoker.experiment.parse import CONFIG_NAME, check, read_document
    from stoker.train.export import export_model, find_trained, load_weights

    trained = find_trained(folder, latest=latest)
    config = check(read_document(folder / CONFIG_NAME), Config)
    fed = open_data(config, "cpu")
    model, _ = make_trained(config, fed)
    averaged = load_weights(model, trained)
    golden = _golden(fed, own=config.model.__struct_config__.tag == "own")
    with naming_known():
        return trained.step, averaged, export_model(model, golden, target, onnx=is_onnx)


def _export_own(folder: Path, target: Path, model: str, data: str, *, latest: bool, is_onnx: bool) -> tuple[int, bool, Exported]:
    """Export a run of the Python trainer, whose model a function of the user's makes."""
    import stoker
    from stoker.experiment.models import blaming, load_function

    with blaming(model):
        loaded = stoker.load(folder, model=load_function(model)(), latest=latest, device="cpu")
        return loaded.step, loaded.averaged, loaded.export(stoker.open(data), target, onnx=is_onnx)


def _golden(fed: Fed, *, own: bool) -> dict[str, torch.Tensor]:
    """Some real samples, with the entries that the model reads; for your own model, all except targets."""
    batch = next(iter(fed.valid or fed.train))
    known = fed.task.known_entries
    ahead = ("valid", "target_mask", *(name for name in batch if name.endswith(("_target", "_target_observed"))))
    names = [name for name in batch if name not in ahead or name in known]
    rows = min(GOLDEN_ROWS, max(2, int(batch["valid"].sum())))
    return {name: batch[name][:rows] for name in (names if own else fed.task.entries)}
