"""`stoker inspect` shows what a store holds; `stoker verify` checks a store, a bundle or a TFA configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.store.inspect import StoreSummary


MAX_SOURCES = 6


@click.command("inspect", cls=base.Command, doing=None)
@click.argument("store", type=base.PATH)
@base.json_option
def command(store: str, as_json: bool) -> None:
    """Show the schema, lengths, non-finite values, size and sources of STORE. Does not read the values."""
    from stoker.store.inspect import inspect

    summary = inspect(store)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    roles = [
        f", {role} {printable(name)!r}"
        for role, name in (("key", summary.key), ("time", summary.time), ("freq", summary.freq))
        if name
    ]
    counts = f"{summary.num_series:,} series, {summary.num_steps:,} steps, {readable_bytes(summary.num_bytes)}"
    console.print(Text(f"{printable(summary.path)}: {counts}{''.join(roles)}", style="bold"))
    appends = f", {summary.num_appends:,} appends (see `stoker compact`)" if summary.num_appends else ""
    console.print(f"digest {summary.digest}{appends}")
    for table in (_columns(summary), _lengths(summary), _sources(summary)):
        console.print("", table, sep="\n")
    for note in summary.notes:
        console.print(Text(f"note: {printable(note)}"))


def _table(title: str, *headers: str) -> Table:
    table = base.new_table(title=title, title_justify="left", title_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    return table


def _columns(summary: StoreSummary) -> Table:
    from rich.text import Text

    from stoker.store.inspect import missing_values

    table = _table("columns", "name", "type", "per", "missing", "inf", "first NaN or inf")
    for column in summary.columns:
        label = column.label
        if column.kind == "category" and column.texts is not None:
            label += f" of {len(column.texts):,}"
        bad = column.nonfinite
        first = f"series {bad.first[0]:,} step {bad.first[1]:,}" if bad.first else ""
        counts = [f"{count:,}" for count in (missing_values(column), bad.inf)]
        table.add_row(Text(printable(column.name)), Text(printable(label)), column.level, *counts, first)
    return table


def _lengths(summary: StoreSummary) -> Table:
    table = _table(f"lengths: {summary.shortest:,} to {summary.longest:,}, median {summary.median:,.0f}", "steps", "", "series")
    most = max((one.num_series for one in summary.histogram), default=1) or 1
    for one in summary.histogram:
        span = f"{one.low:,}" if one.low == one.high else f"{one.low:,} to {one.high:,}"
        table.add_row(span, "█" * round(40 * one.num_series / most) or ("▏" if one.num_series else ""), f"{one.num_series:,}")
    return table


def _sources(summary: StoreSummary) -> Table:
    from rich.text import Text

    table = _table("sources", "name", "xxh3", "rows", "size")
    for source in summary.sources[:MAX_SOURCES]:
        table.add_row(Text(printable(source.name)), source.xxh3 or "", f"{source.num_rows:,}", readable_bytes(source.num_bytes))
    if rest := summary.sources[MAX_SOURCES:]:
        rows, size = sum(one.num_rows for one in rest), sum(one.num_bytes for one in rest)
        table.add_row(f"… {len(rest):,} more", "", f"{rows:,}", readable_bytes(size))
    return table


@click.command("verify", cls=base.Command, doing="verifying {path}")
@click.argument("path", type=base.CONFIG, metavar="STORE|BUNDLE|TFA.yaml")
@base.json_option
def verify_command(path: str, as_json: bool) -> None:
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
        values, text = _verify_training(Path(path))
    else:
        values, text = _verify_store(path)
    click.echo(json.dumps({"path": path, **values}) if as_json else f"{printable(path)} {text}")


def _verify_store(path: str) -> tuple[dict[str, Any], str]:
    from stoker.store.inspect import verify

    with base.bar("MB") as show:
        done = verify(path, report=lambda part, total: show("verifying", part / max(total, 1), part // 1_000_000))
    values = {"num_shards": done.num_shards, "num_bytes": done.num_bytes, "digest": done.digest}
    return values, f"is complete: {done.num_shards} shards, {done.num_bytes / 1e6:,.1f} MB, digest {done.digest}"


def _verify_bundle(path: str) -> tuple[dict[str, Any], str]:
    from stoker_recipes.tfa import verify_bundle

    proof = verify_bundle(path)
    found = f"{proof.rows} rows of features are equal bit for bit, {proof.logits} logits within {proof.difference:.1g}"
    values = {"rows": proof.rows, "logits": proof.logits, "difference": proof.difference}
    return values, f"is complete and gives the same results as after training:\n{found}"


def _verify_training(path: Path) -> tuple[dict[str, Any], str]:
    from stoker import _disk
    from stoker_recipes.tfa.settings import read_settings
    from stoker_recipes.tfa.training import prepare_run

    settings = read_settings(path)
    said: list[dict[str, str]] = []

    def report_and_keep(word: str, sentence: str) -> None:
        said.append({"what": word, "found": sentence})
        base.say(word, sentence)

    with _disk.scratch_folder(path.with_name(f".{path.stem}.verify")) as scratch:
        _disk.remove_folder(scratch / "run")  # of a check that was killed
        prepare_run(settings, scratch / "run", report_and_keep)
    return {"checks": said}, "passed all checks."
