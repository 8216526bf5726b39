"""`stoker inspect`: what a store holds, and whether each byte is as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.store.inspect import StoreSummary, VerifyResult

MAX_SOURCES = 6

NEXT = "next: stoker train CONFIG.yaml   (stoker train --fields lists what a configuration may hold)"


@click.command("inspect", cls=base.Command, doing=None)
@click.argument("store", type=base.STORE)
@click.option("--verify", "verifies", is_flag=True, help="Read every byte, and compare it with the hash taken when it was written.")
@base.json_option
def command(store: str, verifies: bool, as_json: bool) -> None:
    """Show the schema, lengths, non-finite values, size and sources of STORE. Reads the values only with --verify.

    \b
    stoker inspect prices.stoker
    stoker inspect prices.stoker --verify
    """
    from stoker.store.inspect import inspect

    if verifies:
        done = _verify(store)
        if as_json:
            base.print_json({"path": store, "num_shards": done.num_shards, "num_bytes": done.num_bytes, "digest": done.digest})
        else:
            size = f"{done.num_shards} shards, {done.num_bytes / 1e6:,.1f} MB"
            click.echo(f"{printable(store)} is complete: {size}, digest {done.digest}")
            base.report(NEXT)
        return
    summary = inspect(store)
    if as_json:
        base.print_json(summary.to_dict())
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
    appends = f", {summary.num_appends:,} appends (see `stoker append --compact`)" if summary.num_appends else ""
    console.print(f"digest {summary.digest}{appends}")
    for table in (_columns(summary), _lengths(summary), _sources(summary)):
        console.print("", table, sep="\n")
    for note in summary.notes:
        console.print(Text(f"note: {printable(note)}"))
    base.report(NEXT)


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
    most = max((bucket.num_series for bucket in summary.histogram), default=1) or 1
    for bucket in summary.histogram:
        span = f"{bucket.low:,}" if bucket.low == bucket.high else f"{bucket.low:,} to {bucket.high:,}"
        table.add_row(
            span, "█" * round(40 * bucket.num_series / most) or ("▏" if bucket.num_series else ""), f"{bucket.num_series:,}"
        )
    return table


def _sources(summary: StoreSummary) -> Table:
    from rich.text import Text

    table = _table("sources", "name", "xxh3", "rows", "size")
    for source in summary.sources[:MAX_SOURCES]:
        table.add_row(Text(printable(source.name)), source.xxh3 or "", f"{source.num_rows:,}", readable_bytes(source.num_bytes))
    if rest := summary.sources[MAX_SOURCES:]:
        rows, size = sum(source.num_rows for source in rest), sum(source.num_bytes for source in rest)
        table.add_row(f"… {len(rest):,} more", "", f"{rows:,}", readable_bytes(size))
    return table


def _verify(store: str) -> VerifyResult:
    from stoker.store.inspect import verify

    with base.bar("MB") as show:
        return verify(store, report=lambda part, total: show("verifying", part / max(total, 1), part // 1_000_000))
