"""`stoker compact`: rewrite a store with appended rows as one plain store."""

from __future__ import annotations

import click

from stoker._text import printable, readable_bytes
from stoker.cli.main import PATH


@click.command("compact", short_help="Rewrite a store with appended rows as one plain store.")
@click.argument("store", type=PATH)
@click.argument("out", type=PATH, required=False)
@click.option("--replace", is_flag=True, help="Replace an existing store OUT.")
def command(store: str, out: str | None, replace: bool) -> None:
    """Rewrite STORE as one plain store, in one step. Its earlier versions are removed.

    With OUT, write the plain store there; STORE and its versions stay as they are.
    """
    from stoker.store.append import compact

    done = compact(store, out, replace=replace)
    where = printable(out if out is not None else store)
    click.echo(f"compacted: {where} has {len(done):,} series, {done.num_steps:,} steps, {readable_bytes(done.num_bytes)}")
