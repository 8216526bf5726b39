"""`stoker append` and `stoker compact`: add rows to a store, make it one plain store again."""

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

    Rows go to the series with the same key, other keys become new series. Only the new rows are written. Readers keep the rows
    that they have opened. If an append was killed, the same command resumes it.

    \b
    stoker append prices.stoker prices/2026-11-16.csv
    stoker append prices.stoker corrected.csv --overlap replace
    curl -s https://example.com/today.csv | stoker append prices.stoker -
    """
    from stoker.store.append import append
    from stoker.store.appended import AppendedStore

    if time is not None:
        options["time"] = time
    with base.bar("rows") as show:
        added = append(store, list(source), progress=show, **base.pack_arguments(options))
    num_rows, num_series = added.num_new if isinstance(added, AppendedStore) else (added.num_steps, len(added))
    if as_json:
        click.echo(
            json.dumps({"num_new_rows": num_rows, "num_new_series": num_series, "num_series": len(added), "digest": added.digest})
        )
        return
    new = f", {num_series:,} of them new" if num_series else ""
    click.echo(f"appended {num_rows:,} rows: {printable(store)} has {len(added):,} series{new}")


@click.command("compact", cls=base.Command, doing="compacting {store}", writes="out")
@click.argument("store", type=base.PATH)
@click.argument("out", type=base.PATH, required=False)
@base.overwrite_option("Replace an existing store OUT.", "replace")
def compact_command(store: str, out: str | None, replace: bool) -> None:
    """Rewrite STORE as one plain store, in one step.

    With OUT, write the plain store there; STORE stays as it is.
    """
    from stoker.store.append import compact

    done = compact(store, out, replace=replace)
    where = printable(out if out is not None else store)
    click.echo(f"compacted: {where} has {len(done):,} series, {done.num_steps:,} steps, {readable_bytes(done.num_bytes)}")
