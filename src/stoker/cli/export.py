"""`stoker export`: the best model of a run becomes a program, checked on a golden batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.errors import CheckpointError, CheckpointInvalid, ConfigInvalid
from stoker.printable import printable
from stoker.units import readable_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stoker.cli.assembly import Fed
    from stoker.train.checkpoints import Checkpoint

GOLDEN_ROWS = 64


@click.command("export", short_help="Export the model of a run as a program.")
@click.argument("run")
@click.argument("path")
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@click.option("--onnx", is_flag=True, help="As ONNX, for other runtimes; needs the extra stoker[onnx].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
def command(run: str, path: str, latest: bool, onnx: bool, as_json: bool) -> None:
    """Export the model of RUN (the folder of a run) to PATH as a program that torch.export.load reads, for batches of any size.

    It has the average of the weights where the run kept one, and takes what the feed delivers. The program is run on samples of the
    validation (or training) data before it is written, and must answer as the model does; samples and answers stay beside it.

    \b
    stoker export runs/tfa model.pt2
    stoker export runs/tfa model.onnx --onnx
    """
    from stoker.cli.assembly import make_trained, open_data
    from stoker.cli.train import CONFIG_NAME
    from stoker.train.config import read_config
    from stoker.train.export import export_model

    folder = Path(run)
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigInvalid(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run of `stoker train`.")
    found = _checkpoint(folder, latest=latest)
    config = read_config(folder / CONFIG_NAME)
    fed = open_data(config, "cpu")
    model = make_trained(config, fed).model
    averaged = load_weights(model, found)
    exported = export_model(model, _golden(fed, own=config.model.__struct_config__.tag == "own"), Path(path), onnx=onnx)
    if as_json:
        told: dict[str, Any] = {
            "path": str(exported.path),
            "golden": str(exported.golden),
            "num_bytes": exported.num_bytes,
            "step": found.step,
            "averaged": averaged,
            "rows": exported.rows,
            "difference": exported.difference,
        }
        click.echo(json.dumps(told))
        return
    weights = "averaged weights" if averaged else "weights"
    click.echo(f"exported the {weights} of step {found.step:,}, {readable_bytes(exported.num_bytes)}: {printable(path)}")
    off = f"largest difference from the model {exported.difference:.2g}"
    click.echo(f"checked on {exported.rows} samples, {off}: {printable(str(exported.golden))}")


def _checkpoint(folder: Path, *, latest: bool) -> Checkpoint:
    from stoker.train.checkpoints import Checkpoints

    with Checkpoints(folder / "checkpoints") as checkpoints:
        found = None if latest else checkpoints.best()
        found = found or checkpoints.latest()
    if found is None:
        raise CheckpointError(f"{folder} has no checkpoint. Train it first: stoker train --resume {folder}")
    return found


def load_weights(model: nn.Module, found: Checkpoint) -> bool:
    """Give a model the weights of a checkpoint, averaged where it has an average; says whether it has."""
    weights = dict(found.parts["model"])
    average = found.parts.get("ema", {}).get("average", {})
    weights.update({name: tensor.to(weights[name].dtype) for name, tensor in average.items()})
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointInvalid(f"{found.path} is of another model: {' '.join(str(error).split())[:200]}") from error
    return bool(average)


def _golden(fed: Fed, *, own: bool) -> dict[str, torch.Tensor]:
    """Some real samples, with the entries that the model looks at; of a model of one's own, all but targets."""
    batch = next(iter(fed.valid or fed.train))
    valid = batch["valid"]
    names = [name for name in batch if name != "valid" and not name.endswith("_target") and name != "target_mask"]
    rows = min(GOLDEN_ROWS, max(2, int(valid.sum())))
    return {name: batch[name][:rows] for name in (names if own else fed.task.entries)}
