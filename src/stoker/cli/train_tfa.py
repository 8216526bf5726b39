"""`stoker train tfa.yaml`: bars become a checked and scored model that can be exported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli.paths import PATH
from stoker.cli.train import naming_flags, stopped_line
from stoker.errors import ConfigError
from stoker.experiment.parse import CONFIG_NAME

if TYPE_CHECKING:
    from stoker.recipes.tfa.pipeline import Trained
    from stoker.recipes.tfa.scoring import Score


@click.command("tfa", short_help="Train on market bars.")
@click.argument("config", required=False, type=PATH)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Set a value of the configuration.")
@click.option("--resume", type=PATH, metavar="FOLDER", help="Resume the run of this folder.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier run of this recipe in the folder; other files stay.")
@click.option("--fields", is_flag=True, help="Show all keys of a configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    config: str | None, assignments: tuple[str, ...], resume: str | None, overwrite: bool, fields: bool, as_json: bool, quiet: bool
) -> None:
    """Train on market bars, with the settings of CONFIG (YAML).

    Bars become indicators and labels; train, validation and score are kept apart in time; training stops early by the
    validation loss, and the score compares the model with baselines. A likely leak is an error. Ctrl-C saves and stops.

    The run is written to `out_dir`, which must be new, empty, or of an earlier run of this recipe.

    \b
    stoker train tfa.yaml
    stoker train tfa.yaml --set model=banded --set epochs=10
    stoker train --resume runs/tfa
    stoker export runs/tfa bundle/
    """
    if fields:
        _show_fields()
        return
    if (config is None) == (resume is None):
        raise click.UsageError("Give a CONFIG, or --resume FOLDER.")
    if overwrite and resume is not None:
        raise click.UsageError("--overwrite replaces a run, --resume continues it: give one of them.")
    from stoker.cli.main import Terminated
    from stoker.recipes.tfa import read_settings, train

    if resume is not None:
        folder = Path(resume)
        if not (folder / "config.yaml").is_file():
            raise ConfigError(
                f"{folder} has no config.yaml: its run ended before its first step. Start it again: stoker train CONFIG"
            )
        with naming_flags():
            settings = read_settings(folder / "config.yaml", assignments=assignments)
    else:
        with naming_flags():
            settings = read_settings(Path(config or ""), assignments=assignments)
        folder = Path(settings.out_dir or "")
    shows = not quiet and not as_json

    def say(word: str, sentence: str) -> None:
        click.echo(printable(f"{word:<10} {sentence}"))

    try:
        says = {} if as_json else {"say": say}
        done = train(settings, folder, resume=resume is not None, overwrite=overwrite, progress=shows, **says)
    except (KeyboardInterrupt, Terminated) as stop:
        click.echo(stopped_line(folder, needs=[CONFIG_NAME]), err=True)
        sys.exit(130 if isinstance(stop, KeyboardInterrupt) else 143)
    _show(done, folder, as_json=as_json)


def _show_fields() -> None:
    from msgspec.inspect import StructType, type_info

    from stoker.experiment.parse import explain
    from stoker.recipes.tfa.settings import Settings

    info = type_info(Settings)
    if isinstance(info, StructType):
        click.echo("\n".join(explain(info)))


def _show(done: Trained, folder: Path, *, as_json: bool) -> None:
    result, score = done.result, done.score
    if as_json:
        report: dict[str, Any] = {"folder": str(folder), "score": score.to_dict()}
        for name in ("stopped", "step", "epoch", "best", "best_step", "seconds"):
            report[name] = getattr(result, name)
        click.echo(json.dumps(report))
        return
    words = {"finished": "all epochs", "early": "stopped early", "budget": "stopped by max_training_hours"}
    ended = words.get(result.stopped, result.stopped)
    click.echo(f"{'trained':<10} {result.epoch:,} epochs, {result.step:,} updates in {result.seconds:,.0f} s ({ended})")
    click.echo("")
    _table(score)
    click.echo("")
    click.echo(printable(f"verdict    {score.verdict}"))
    click.echo(printable(f"run        {folder}   next: stoker export {folder} bundle/"))


def _table(score: Score) -> None:
    from stoker.recipes.tfa.scoring import NAMES

    click.echo(f"score of {score.labels:,} labels, {score.up:.1%} of them up".ljust(48) + "AUC   log-loss   calibration error")
    for line in score.lines:
        numbers = [f"{line.auc:.4f}"]
        numbers += (
            ["", ""] if line.log_loss is None or line.calibration is None else [f"{line.log_loss:.4f}", f"{line.calibration:.4f}"]
        )
        click.echo(f"  {NAMES[line.name]:<43}{numbers[0]:>6}{numbers[1]:>11}{numbers[2]:>20}")
    click.echo(f"  {'chance: labels shifted in time (95 %)':<43}{score.chance:>6.4f}")
