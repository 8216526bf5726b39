"""What TFA registers with Stoker: training on market bars, bundles, `stoker tfa indicators` and `verify`, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stoker.cli.command as base
import stoker.cli.training as shared
from stoker.errors import ConfigError, OptionError
from stoker.extend import Recipe, disk, printable

if TYPE_CHECKING:
    from stoker.experiment import TrainedRun
    from stoker_recipes.tfa.training import TrainedTfa


@click.command("tfa", cls=base.Command, doing="training {config|resume}", short_help="Train on market bars.")
@click.argument("config", required=False, type=base.CONFIG)
@base.set_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@click.option("--fields", is_flag=True, help="Show all keys of a configuration.")
@base.json_option
def train(config: str | None, overrides: tuple[str, ...], resume: str | None, overwrite: bool, fields: bool, as_json: bool) -> None:
    """Train on market bars, with the settings of CONFIG (YAML).

    Bars become indicators and labels; train, validation and score are kept apart in time; training stops early by the
    validation loss, and the score compares the model with baselines. A likely leak is an error. Ctrl-C saves and stops.

    The run is written to `out_dir`, which must be new, empty, or of an earlier run of this recipe.

    \b
    stoker tfa verify tfa.yaml
    stoker train tfa.yaml
    stoker train tfa.yaml --set model=banded --set epochs=10
    stoker train --resume runs/tfa
    stoker export runs/tfa bundle/
    """
    if fields:
        from stoker_recipes.tfa.settings import Settings

        shared.show_fields(Settings)
        return
    shared.check_call(config, "a CONFIG", resume=resume, overwrite=overwrite)
    from stoker_recipes.tfa import read_settings
    from stoker_recipes.tfa import train as run_training

    path = Path(config or "") if resume is None else Path(resume) / shared.CONFIG_NAME
    if resume is not None and not path.is_file():
        raise ConfigError(
            f"{resume} has no {shared.CONFIG_NAME}: its run ended before its first step. Start it again: stoker train CONFIG"
        )
    settings = read_settings(path, assignments=overrides)
    folder = Path(resume or settings.out_dir or "")
    with shared.saying_how_to_resume(folder):
        done = run_training(
            settings, folder, resume=resume is not None, overwrite=overwrite, progress=base.shows_progress(), say=base.say
        )
    _show(done, folder, as_json=as_json)


def _show(done: TrainedTfa, folder: Path, *, as_json: bool) -> None:
    from stoker_recipes.tfa.training import NAMES

    result, score = done.result, done.score
    if as_json:
        values = shared.values_of(result, "stopped", "step", "epoch", "best", "best_step", "seconds")
        base.print_json({"folder": str(folder), "score": asdict(score), **values})
        return
    ended = shared.STOPPED[result.stopped]
    click.echo(f"{'trained':<10} {result.epoch:,} epochs, {result.step:,} updates in {result.seconds:,.0f} s ({ended})\n")
    click.echo(f"score of {score.labels:,} labels, {score.up:.1%} of them up".ljust(48) + "AUC   log-loss   calibration error")
    for line in score.lines:
        others = "" if line.log_loss is None or line.calibration is None else f"{line.log_loss:>11.4f}{line.calibration:>20.4f}"
        click.echo(f"  {NAMES[line.name]:<43}{line.auc:>6.4f}{others:<31}")
    click.echo(f"  {'chance: labels shifted in time (95 %)':<43}{score.chance:>6.4f}\n")
    click.echo(printable(f"verdict    {score.verdict}"))
    click.echo(printable(f"run        {folder}   next: stoker export {folder} bundle/"))


@click.command("export", cls=base.Command, doing="exporting the model of {run}")
@click.argument("run", type=base.PATH)
@click.argument("path", type=base.PATH)
@click.option("--latest", is_flag=True, help="The newest checkpoint instead of the best one.")
@click.option("--onnx", is_flag=True, help="Also write model.onnx.")
@base.overwrite_option("Replace what an earlier export wrote to PATH.")
@base.json_option
def export(run: str, path: str, latest: bool, onnx: bool, overwrite: bool, as_json: bool) -> None:
    """Export the model of RUN as a bundle: the folder PATH with the model, its features and its window.

    It also has bars whose features and logits were computed in a batch and bar by bar. Its programs are model.pt2, model.pt
    (TorchScript) and, with --onnx, model.onnx.
    """
    from stoker_recipes.tfa import write_bundle

    if Path(path).suffix in base.FILE_ENDINGS:
        raise OptionError(
            f"{path} would be a file, but a run on market bars becomes a folder with its programs. Give a folder.", path=path
        )
    bundle, proof = write_bundle(Path(run), path, latest=latest, onnx=onnx, overwrite=overwrite)
    if as_json:
        values = {"path": path, "step": bundle.step, "rows": proof.rows, "logits": proof.logits, "difference": proof.difference}
        base.print_json({**values, "spec_hash": bundle.spec_hash, "length": bundle.length, "reach": bundle.reach})
        return
    takes = f"for {len(bundle.features)} features of {bundle.reach} rows"
    click.echo(f"exported the weights of step {bundle.step:,}, {takes}: {printable(path)}")
    rows = f"{proof.rows} rows of features equal bit for bit in a batch and bar by bar"
    click.echo(f"proved on golden bars: {rows}, {proof.logits} logits within {proof.difference:.1g}")
    if bundle.score.get("skilled") is False:
        click.echo(printable(f"beware: {bundle.score['verdict']}"))
    base.report(printable(f"next: stoker tfa verify {path}"))


@click.group("tfa", cls=base.CommandGroup, short_help="Compute indicators of bars, and verify bundles.")
def tfa() -> None:
    """Compute the indicators of market bars, and verify what `stoker train tfa` reads and `stoker export` writes."""


@tfa.command("indicators", cls=base.Command, doing="computing indicators of {source}")
@click.argument("source", type=base.PATH)
@click.argument("store", type=base.PATH)
@click.option("--spec", required=True, type=base.SPEC, metavar="FILE", help="JSON file with the features.")
@base.overwrite_option("Replace an existing STORE.", "replace")
@base.json_option
def indicators(source: str, store: str, spec: str, replace: bool, as_json: bool) -> None:
    """Compute the features of SOURCE, a store of bars, and write a store with the bars and one column of all features.

    Bars have those of the columns open, high, low, close and volume that the spec needs. Features are computed series by
    series, and are NaN where they are not ready. An existing store is replaced only with --overwrite.

    \b
    stoker pack bars.csv bars.stoker --series symbol --time ts
    stoker tfa indicators bars.stoker features.stoker --spec features.json
    """
    import stoker
    from stoker.store import check_target
    from stoker_recipes.tfa.indicators.engine import write_features
    from stoker_recipes.tfa.indicators.spec import parse_spec

    wanted = parse_spec(Path(spec))
    check_target(Path(store), replace=replace)
    with base.bar("bars") as show:
        written = write_features(stoker.open(source), wanted, store, replace=replace, progress=show)
    if as_json:
        report = {"features": list(wanted.names), "emit_from": wanted.emit_from, "spec_hash": wanted.content_hash}
        base.print_json({**stoker.inspect(written).to_dict(), **report})
        return
    width = f"{len(wanted.features)} features from bar {wanted.emit_from} on"
    click.echo(f"computed {width} for {written.num_steps:,} bars in {len(written):,} series: {printable(store)}")
    base.report(printable(f"next: stoker inspect {store}"))


@tfa.command("verify", cls=base.Command, doing="verifying {path}")
@click.argument("path", type=base.CONFIG, metavar="BUNDLE|CONFIG")
@base.json_option
def verify(path: str, as_json: bool) -> None:
    """Check a bundle of `stoker export`, or the configuration of a run.

    Of a BUNDLE, the features and logits of its golden bars are computed again, in a batch and bar by bar. Of a CONFIG (YAML), bars,
    labels, split, samples and scaler are checked without training.

    \b
    stoker tfa verify bundle/
    stoker tfa verify tfa.yaml
    """
    values, text = _verify_bundle(path) if Path(path).is_dir() else _verify_config(Path(path))
    if as_json:
        base.print_json({"path": path, **values})
    else:
        click.echo(f"{printable(path)} {text}")


def _verify_bundle(path: str) -> tuple[dict[str, Any], str]:
    from stoker_recipes.tfa import verify_bundle

    proof = verify_bundle(path)
    result = f"{proof.rows} rows of features are equal bit for bit, {proof.logits} logits within {proof.difference:.1g}"
    values = {"rows": proof.rows, "logits": proof.logits, "difference": proof.difference}
    after = f"next: stoker_recipes.tfa.BarPredictor.load({path!r})   (in Python)"
    return values, f"is complete and gives the same results as after training:\n{result}\n{printable(after)}"


def _verify_config(path: Path) -> tuple[dict[str, Any], str]:
    from stoker_recipes.tfa.settings import read_settings
    from stoker_recipes.tfa.training import prepare_run

    settings = read_settings(path)
    said: list[dict[str, str]] = []

    def report_and_keep(word: str, sentence: str) -> None:
        said.append({"what": word, "found": sentence})
        base.say(word, sentence)

    with disk.scratch_folder(path.with_name(f".{path.stem}.verify")) as scratch:
        disk.remove_folder(scratch / "run")  # of a check that was killed
        prepare_run(settings, scratch / "run", report_and_keep)
    return {"checks": said}, f"passed all checks.   next: stoker train {path}"


def _open_run(folder: Path, **options: Any) -> TrainedRun:
    from stoker_recipes.tfa.predicting import open_run

    return open_run(folder, **options)


def _owns_config(tree: Mapping[str, Any]) -> bool:
    from stoker_recipes.tfa.settings import is_tfa

    return is_tfa(tree)


RECIPE = Recipe(commands={"train": train, "export": export}, open_run=_open_run, owns_config=_owns_config)
