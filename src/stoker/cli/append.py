"""`stoker append`: add rows and series to a store."""

from __future__ import annotations

import json

import click

from stoker._progress import progress
from stoker._text import printable
from stoker.cli.main import PATH, reading_options

OVERLAP = ["error", "replace", "keep"]


@click.command("append", short_help="Add rows and series to a store.")
@click.argument("store", type=PATH)
@click.argument("source", nargs=-1, required=True, type=PATH)
@click.option(
    "--overlap",
    type=click.Choice(OVERLAP),
    default="error",
    show_default=True,
    help="Rows not after the last time of their series.",
)
@click.option("--time", metavar="COL", help="Column that orders the steps, where the store has no time column.")
@click.option("--sort", is_flag=True, help="Sort the new rows by time instead of rejecting unsorted times.")
@click.option("--wide", is_flag=True, help="Each numeric column of the new files is a series.")
@click.option("--missing", type=click.Choice(["keep", "error", "drop"]), default="keep", show_default=True, help="Missing values.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print the new version as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Hide the progress bar.")
def command(store: str, source: tuple[str, ...], as_json: bool, quiet: bool, time: str | None, **options: object) -> None:
    """Add the rows of SOURCE (files, folders, or patterns in quotes) to STORE, in one step.

    Rows go to the series with the same key, other keys become new series. Only the new rows are written. Readers keep the version
    that they have opened. If an append was killed, the same command resumes it.

    \b
    stoker append prices.stoker prices/2026-11-16.csv
    stoker append prices.stoker corrected.csv --overlap replace
    """
    from stoker.store.append import append, history

    if time is not None:
        options["time"] = time
    with progress(unit="rows", enabled=not quiet and not as_json) as show:
        added = append(store, list(source), progress=show, **options)  # type: ignore[arg-type]
    newest = history(store)[-1]
    if as_json:
        click.echo(json.dumps(newest.to_dict()))
        return
    new = f", {newest.num_new_series:,} of them new" if newest.num_new_series else ""
    click.echo(
        f"appended {newest.num_new_rows:,} rows: {printable(store)} has {len(added):,} series{new}, version {added.version:,}"
    )
