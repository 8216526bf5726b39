"""`stoker verify`: check a store against its hashes, a bundle against its golden bars, or a TFA configuration before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from stoker._progress import progress
from stoker._text import printable
from stoker.cli.main import PATH


@click.command("verify", short_help="Check every byte of a store against its hash.")
@click.argument("path", type=PATH, metavar="STORE|BUNDLE|TFA.yaml")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(path: str, as_json: bool) -> None:
    """Read every byte of STORE and compare it with the hash taken when it was written.

    For a BUNDLE of `stoker export`, compute the features and logits of its golden bars again, in a batch and bar by bar. For the
    YAML of a TFA run, check bars, labels, split, samples and scaler without training.

    \b
    stoker verify prices.stoker
    stoker verify bundle/
    stoker verify tfa.yaml
    """
    if (Path(path) / "bundle.json").is_file():
        values, text = _verify_bundle(path)
    elif Path(path).suffix in (".yaml", ".yml") and Path(path).is_file():
        values, text = _verify_training(Path(path), shows=not as_json)
    else:
        values, text = _verify_store(path, shows=not as_json)
    click.echo(json.dumps({"path": path, **values}) if as_json else f"{printable(path)} {text}")


def _verify_store(path: str, *, shows: bool) -> tuple[dict[str, Any], str]:
    from stoker.store.inspect import verify

    with progress(unit="MB", enabled=shows) as show:
        done = verify(path, report=lambda part, total: show("verifying", part / max(total, 1), part // 1_000_000))
    values = {"num_shards": done.num_shards, "num_bytes": done.num_bytes, "digest": done.digest}
    return values, f"is complete: {done.num_shards} shards, {done.num_bytes / 1e6:,.1f} MB, digest {done.digest}"


def _verify_bundle(path: str) -> tuple[dict[str, Any], str]:
    from stoker.recipes.tfa import verify_bundle

    proof = verify_bundle(path)
    found = f"{proof.rows} rows of features are equal bit for bit, {proof.logits} logits within {proof.difference:.1g}"
    values = {"rows": proof.rows, "logits": proof.logits, "difference": proof.difference}
    return values, f"is complete and gives the same results as after training:\n{found}"


def _verify_training(path: Path, *, shows: bool) -> tuple[dict[str, Any], str]:
    from stoker import _disk
    from stoker.recipes.tfa.pipeline import prepare_run
    from stoker.recipes.tfa.settings import read_settings

    settings = read_settings(path)
    said: list[dict[str, str]] = []

    def say(word: str, sentence: str) -> None:
        said.append({"what": word, "found": sentence})
        if shows:
            click.echo(printable(f"{word:<10} {sentence}"))

    with _disk.scratch_folder(path.with_name(f".{path.stem}.verify")) as scratch:
        _disk.remove_folder(scratch / "run")  # of a check that was killed
        prepare_run(settings, scratch / "run", say)
    return {"checks": said}, "passed all checks."
