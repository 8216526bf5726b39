"""`stoker append`, `stoker history` and `stoker compact`: add rows to a store, list its versions, make it one plain store."""

from __future__ import annotations

import json

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base

OVERLAP = ["error", "replace", "keep"]


@click.command("append", cls=base.Command, doing="appending {source} to {store}")
@click.argument("store", type=base.PATH)
@click.argument("source", nargs=-1, required=True, type=base.TABLE)
@base.choice_option("--overlap", choices=OVERLAP, default="error", help="Rows not after the last time of their series.")
@click.option("--time", metavar="COLUMN", help="Column that orders the steps, where the store has no time column.")
@base.sort_option
@click.option("--wide", is_flag=True, help="Each numeric column of the new files is a series.")
@base.missing_option(["keep", "error", "drop"])
@base.reading_options
@base.json_option
def command(store: str, source: tuple[str, ...], as_json: bool, time: str | None, **options: object) -> None:
    """Add the rows of SOURCE (files, folders, or patterns in quotes) to STORE, in one step.

    Rows go to the series with the same key, other keys become new series. Only the new rows are written. Readers keep the version
    that they have opened. If an append was killed, the same command resumes it.

    \b
    stoker append prices.stoker prices/2026-11-16.csv
    stoker append prices.stoker corrected.csv --overlap replace
    curl -s https://example.com/today.csv | stoker append prices.stoker -
    """
    from stoker.store.append import append, history

    if time is not None:
        options["time"] = time
    with base.bar("rows") as show:
        added = append(store, list(source), progress=show, **options)  # type: ignore[arg-type]
    newest = history(store)[-1]
    if as_json:
        click.echo(json.dumps(newest.to_dict()))
        return
    new = f", {newest.num_new_series:,} of them new" if newest.num_new_series else ""
    click.echo(
        f"appended {newest.num_new_rows:,} rows: {printable(store)} has {len(added):,} series{new}, version {added.version:,}"
    )


MAX_NAMES = 3


@click.command("history", cls=base.Command, doing=None)
@click.argument("store", type=base.PATH)
@base.json_option
def history_command(store: str, as_json: bool) -> None:
    """List the versions of STORE: one for the pack, and one for each append. `stoker.open(path, version=N)` opens one of them."""
    from stoker.store.append import history

    versions = history(store)
    if as_json:
        click.echo(json.dumps([version.to_dict() for version in versions]))
        return
    from rich.console import Console
    from rich.text import Text

    table = base.new_table()
    for title in ("version", "written", "rows", "series", "new", "size", "overlap", "sources"):
        table.add_column(title, justify="left" if title in ("written", "overlap", "sources") else "right", overflow="fold")
    for one in versions:
        names = ", ".join(source.name for source in one.sources[:MAX_NAMES])
        names += f" and {len(one.sources) - MAX_NAMES:,} more" if len(one.sources) > MAX_NAMES else ""
        counts = [f"{count:,}" for count in (one.num_new_rows, one.num_series, one.num_new_series)]
        rule = one.overlap if one.overlap != "error" else ""
        written = f"{one.written:%Y-%m-%d %H:%M:%S}"
        table.add_row(f"{one.version:,}", written, *counts, readable_bytes(one.num_bytes), rule, Text(printable(names)))
    Console(highlight=False).print(table)


@click.command("compact", cls=base.Command, doing="compacting {store}", writes="out")
@click.argument("store", type=base.PATH)
@click.argument("out", type=base.PATH, required=False)
@base.overwrite_option("Replace an existing store OUT.", "replace")
def compact_command(store: str, out: str | None, replace: bool) -> None:
    """Rewrite STORE as one plain store, in one step. Its earlier versions are removed.

    With OUT, write the plain store there; STORE and its versions stay as they are.
    """
    from stoker.store.append import compact

    done = compact(store, out, replace=replace)
    where = printable(out if out is not None else store)
    click.echo(f"compacted: {where} has {len(done):,} series, {done.num_steps:,} steps, {readable_bytes(done.num_bytes)}")
