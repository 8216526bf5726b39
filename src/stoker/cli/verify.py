"""`stoker verify`: every byte of a store against its hash."""

from __future__ import annotations

import json

import click

from stoker.cli.progress import progress
from stoker.printable import printable


@click.command("verify", short_help="Read every byte of a store against its hash.")
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
def command(store: str, as_json: bool) -> None:
    """Read every byte of STORE and compare it with the hash taken when it was written."""
    from stoker.store.verify import verify

    with progress(unit="MB", enabled=not as_json) as show:
        done = verify(store, report=lambda part, total: show("verifying", part / max(total, 1), part // 1_000_000))
    if as_json:
        click.echo(json.dumps({"path": store, "num_shards": done.num_shards, "num_bytes": done.num_bytes, "digest": done.digest}))
        return
    click.echo(f"{printable(store)} is whole: {done.num_shards} shards, {done.num_bytes / 1e6:,.1f} MB, digest {done.digest}")
