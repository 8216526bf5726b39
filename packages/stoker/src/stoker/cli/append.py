"""`stoker append`: add rows to a store, and make it one plain store again."""

from __future__ import annotations

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base

OVERLAP = ["error", "replace", "keep"]


@click.command("append", cls=base.Command, doing="changing {store}")
@click.argument("store", type=base.PATH)
@click.argument("source", nargs=-1, type=base.TABLE)
@base.choice_option("--overlap", choices=OVERLAP, default="error", help="Rows not after the last time of their series.")
@base.pack_option
@click.option(
    "--compact", "compacts", is_flag=True, help="Rewrite STORE as one plain store, in one step; without SOURCE, only that."
)
@base.json_option
def command(
    store: str,
    source: tuple[str, ...],
    overlap: str,
    pack_options: tuple[str, ...],
    compacts: bool,
    as_json: bool,
) -> None:
    """Add the rows of SOURCE (files, folders, or patterns in quotes) to STORE, in one step.

    Rows go to the series with the same key, other keys become new series. Only the new rows are written. Readers keep the rows
    that they have opened. If an append was killed, the same command resumes it. --pack time=COLUMN is for a store without a time column.

    \b
    stoker append prices.stoker prices/2026-11-16.csv
    stoker append prices.stoker corrected.csv --overlap replace
    stoker append prices.stoker --compact
    curl -s https://example.com/today.csv | stoker append prices.stoker -
    """
    from stoker.store.append import append, compact
    from stoker.store.appended import AppendedStore

    if not (source or compacts):
        raise click.UsageError("Give the SOURCE of the new rows, or --compact.")
    options = base.read_pack_options(pack_options) | {"overlap": overlap}
    added: dict[str, object] = {}
    lines: list[str] = []
    if source:
        with base.bar("rows") as show:
            result = append(store, list(source), progress=show, **base.pack_arguments(options))
        num_rows, num_series = result.num_new if isinstance(result, AppendedStore) else (result.num_steps, len(result))
        added = {"num_new_rows": num_rows, "num_new_series": num_series}
        new = f", {num_series:,} of them new" if num_series else ""
        lines = [f"appended {num_rows:,} rows: {printable(store)} has {len(result):,} series{new}"]
    if compacts:
        result = compact(store)
        size = f"{len(result):,} series, {result.num_steps:,} steps, {readable_bytes(result.num_bytes)}"
        lines.append(f"compacted: {printable(store)} has {size}")
    if as_json:
        base.print_json({**added, "num_series": len(result), "num_bytes": result.num_bytes, "digest": result.digest})
    else:
        click.echo("\n".join(lines))
        base.report(f"next: stoker inspect {store}")
