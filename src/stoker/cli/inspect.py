"""`stoker inspect`: show the schema, lengths, non-finite values, size and sources of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from stoker._text import printable, readable_bytes
from stoker.cli.main import PATH, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.store.inspect import StoreSummary

MAX_SOURCES = 6


@click.command("inspect", short_help="Show what a store holds.")
@click.argument("store", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
    version = f", version {summary.version:,} (see `stoker history`)" if summary.version > 1 else ""
    console.print(f"digest {summary.digest}{version}")
    for table in (_columns(summary), _lengths(summary), _sources(summary)):
        console.print("", table, sep="\n")
    for note in summary.notes:
        console.print(Text(f"note: {printable(note)}"))


def _table(title: str, *headers: str) -> Table:
    table = new_table(title=title, title_justify="left", title_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    return table


def _columns(summary: StoreSummary) -> Table:
    from rich.text import Text

    table = _table("columns", "name", "type", "per", "missing", "NaN", "inf", "first not finite")
    for column in summary.columns:
        label = column.label
        if column.kind == "category" and column.texts is not None:
            label += f" of {len(column.texts):,}"
        bad = column.nonfinite
        first = f"series {bad.first[0]:,} step {bad.first[1]:,}" if bad.first else ""
        counts = [f"{count:,}" for count in (column.missing, bad.nan, bad.inf)]
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
