"""`stoker export`: the best model of a run becomes a program, checked on a golden batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base
from stoker.errors import ConfigError, OptionError

if TYPE_CHECKING:
    import torch

    from stoker.experiment.build import Fed

GOLDEN_ROWS = 64
FILES = (".pt2", ".onnx", ".pt", ".pth", ".ts", ".safetensors", ".bin", ".ckpt", ".json", ".zip")
"""Endings of files: such a name never becomes a folder."""
CHECKPOINT = {"config.json", "model.safetensors"}
"""Files of an official checkpoint of Time-MoE."""


@click.command("export", cls=base.Command, doing="exporting the model of {run}", writes="path")
@click.argument("run", type=base.PATH)
@click.argument("path", type=base.PATH)
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@click.option("--onnx", is_flag=True, help="As ONNX, for other runtimes (as where PATH ends in .onnx); needs stoker[onnx].")
@base.overwrite_option("Replace what an earlier export wrote to PATH.")
@base.json_option
def command(run: str, path: str, latest: bool, onnx: bool, overwrite: bool, as_json: bool) -> None:
    """Export the model of RUN (the folder of a run) to PATH as a program that torch.export.load reads, for batches of any size.

    It has the EMA of the weights where the run kept one, and takes what the feed delivers. The program is run on samples of the
    validation (or training) data before it is written, and must answer as the model does; samples and answers stay beside it.

    A run on market bars becomes a bundle: a folder with the model, its features and its window, and bars whose features and logits
    were computed in a batch and bar by bar. Its programs are model.pt2, model.pt (TorchScript) and, with --onnx, model.onnx. A run of
    Time-MoE becomes an official checkpoint, which is a folder.

    \b
    stoker export runs/first model.pt2
    stoker export runs/first model.onnx
    stoker export runs/tfa bundle/
    """
    from stoker.cli.train import recipe_of_run
    from stoker.experiment.build import make_trained, open_data
    from stoker.experiment.config import Config
    from stoker.experiment.parse import CONFIG_NAME, check, read_document
    from stoker.train.export import export_model, find_trained, load_weights

    folder, is_onnx = Path(run), Path(path).suffix == ".onnx"
    recipe = recipe_of_run(folder)
    if recipe is not None:
        export = {"tfa": _export_bundle, "time-moe": _export_checkpoint}[recipe]
        export(folder, path, latest=latest, onnx=onnx, overwrite=overwrite, as_json=as_json)
        return
    if onnx and not is_onnx:
        raise OptionError(f"--onnx writes a file of ONNX, but PATH is {path}. Give it a name that ends in .onnx.")
    if Path(path).is_dir() or (Path(path).exists() and not overwrite):
        raise OptionError(f"{path} already exists. Replace the file (--overwrite), or give another name.")
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run of `stoker train`.")
    found = find_trained(folder, latest=latest)
    config = check(read_document(folder / CONFIG_NAME), Config)
    fed = open_data(config, "cpu")
    model, _ = make_trained(config, fed)
    averaged = load_weights(model, found)
    exported = export_model(model, _golden(fed, own=config.model.__struct_config__.tag == "own"), Path(path), onnx=is_onnx)
    if as_json:
        values = {"path": str(exported.path), "golden": str(exported.golden), "num_bytes": exported.num_bytes}
        values |= {"step": found.step, "averaged": averaged, "rows": exported.rows, "difference": exported.difference}
        click.echo(json.dumps(values))
        return
    weights = "averaged weights" if averaged else "weights"
    click.echo(f"exported the {weights} of step {found.step:,}, {readable_bytes(exported.num_bytes)}: {printable(path)}")
    off = f"largest difference from the model {exported.difference:.2g}"
    click.echo(f"checked on {exported.rows} samples, {off}: {printable(str(exported.golden))}")


def _export_bundle(folder: Path, path: str, *, latest: bool, onnx: bool, overwrite: bool, as_json: bool) -> None:
    from stoker_recipes.tfa import write_bundle

    if Path(path).suffix in FILES:
        raise OptionError(f"{path} would be a file, but a run on market bars becomes a folder with its programs. Give a folder.")
    bundle, proof = write_bundle(folder, path, latest=latest, onnx=onnx, overwrite=overwrite)
    if as_json:
        values = {"path": path, "step": bundle.step, "rows": proof.rows, "logits": proof.logits, "difference": proof.difference}
        click.echo(json.dumps({**values, "spec_hash": bundle.spec_hash, "length": bundle.length, "reach": bundle.reach}))
        return
    takes = f"for {len(bundle.features)} features of {bundle.reach} rows"
    click.echo(f"exported the weights of step {bundle.step:,}, {takes}: {printable(path)}")
    rows = f"{proof.rows} rows of features equal bit for bit in a batch and bar by bar"
    click.echo(f"proved on golden bars: {rows}, {proof.logits} logits within {proof.difference:.1g}")
    if bundle.score.get("skilled") is False:
        click.echo(printable(f"beware: {bundle.score['verdict']}"))


def _export_checkpoint(folder: Path, path: str, *, latest: bool, onnx: bool, overwrite: bool, as_json: bool) -> None:
    from stoker_recipes.time_moe import save_weights
    from stoker_recipes.time_moe.predicting import load_model

    if onnx or Path(path).suffix in FILES:
        becomes = "an official checkpoint: config.json and model.safetensors"
        raise OptionError(f"{path} would be a program, but a Time-MoE becomes {becomes}. Give a folder.")
    target = Path(path)
    foreign = sorted(entry.name for entry in target.iterdir()) if target.is_dir() else [target.name] if target.exists() else []
    if foreign and not (overwrite and set(foreign) <= CHECKPOINT):
        raise OptionError(
            f"{path} holds {foreign[0]!r} already. Give a new folder, or --overwrite for a checkpoint and nothing else."
        )
    loaded = load_model(folder, latest=latest)
    save_weights(loaded.model, path, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps({"path": path, "step": loaded.step, "parameters": loaded.model.size.num_parameters}))
        return
    click.echo(f"exported the weights of step {loaded.step:,} as an official checkpoint: {printable(path)}")


def _golden(fed: Fed, *, own: bool) -> dict[str, torch.Tensor]:
    """Some real samples, with the entries that the model reads; for your own model, all except targets."""
    batch = next(iter(fed.valid or fed.train))
    names = [name for name in batch if name not in ("valid", "target_mask") and not name.endswith("_target")]
    rows = min(GOLDEN_ROWS, max(2, int(batch["valid"].sum())))
    return {name: batch[name][:rows] for name in (names if own else fed.task.entries)}
