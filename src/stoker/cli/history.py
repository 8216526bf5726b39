"""`stoker history`: list the versions of a store."""

from __future__ import annotations

import json

import click

from stoker._text import printable, readable_bytes
from stoker.cli.main import PATH, new_table

MAX_NAMES = 3


@click.command("history", short_help="List the versions of a store.")
@click.argument("store", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(store: str, as_json: bool) -> None:
    """List the versions of STORE: one for the pack, and one for each append. `stoker.open(path, version=N)` opens one of them."""
    from stoker.store.append import history

    versions = history(store)
    if as_json:
        click.echo(json.dumps([version.to_dict() for version in versions]))
        return
    from rich.console import Console
    from rich.text import Text

    table = new_table()
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
