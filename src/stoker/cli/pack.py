"""`stoker pack`: convert raw files to a store."""

from __future__ import annotations

import json
import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import click

from stoker._progress import progress
from stoker._text import printable
from stoker.cli.main import AMBIGUOUS, DUPLICATES, MISSING, NONEXISTENT, PATH, STORE, reading_options

if TYPE_CHECKING:
    from stoker.store.store import Store

_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")


class _Pack(click.Command):
    """Hands over to the command of a recipe where --recipe names one."""

    recipes: ClassVar[dict[str, click.Command]] = {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        named = [value for flag, value in pairwise(args) if flag == "--recipe"]
        named += [arg.removeprefix("--recipe=") for arg in args if arg.startswith("--recipe=")]
        if named and named[-1] in self.recipes:
            return self.recipes[named[-1]].make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("pack", cls=_Pack, short_help="Pack raw files into a store.")
@click.argument("source", nargs=-1, required=True, type=STORE)
@click.argument("store", type=STORE)
@click.option("--series", metavar="KEY", help="Column that groups rows into series. Rows may be in any order.")
@click.option("--time", metavar="COL", help="Column that orders the steps of a series; it must be strictly increasing.")
@click.option("--sort", is_flag=True, help="Sort by --time instead of rejecting unsorted or equal times.")
@click.option("--wide", is_flag=True, help="Make each numeric column of each file a separate series.")
@click.option("--wide-pattern", metavar="PATTERN", help="As --wide, for several columns per series, like '{series}_{value}'.")
@click.option(
    "--duplicates",
    type=click.Choice(DUPLICATES),
    help="How to treat rows of a series with equal times (default: error). Needs --sort where times are not in order.",
)
@click.option("--freq", metavar="FREQ", help="Distance of two steps, like 15min, 1h, 1d, 1mo; missing steps are added.")
@click.option("--regular/--no-regular", default=True, help="Whether --freq adds missing steps, or is only declared.")
@click.option("--timezone", metavar="ZONE", help="Zone of local times, like Europe/Berlin; they are stored as UTC.")
@click.option(
    "--ambiguous", type=click.Choice(AMBIGUOUS), default="infer", show_default=True, help="Which local time of a repeated hour."
)
@click.option(
    "--nonexistent", type=click.Choice(NONEXISTENT), default="error", show_default=True, help="How to treat skipped local times."
)
@click.option("--columns", metavar="A,B,…", help="Columns to pack (default: all).")
@click.option("--dtype", metavar="TYPE", help="float32, or close=float32,volume=int64. A value that does not fit is an error.")
@click.option("--segment", type=int, metavar="N", help="Cut series into pieces of at most N steps.")
@click.option("--missing", type=click.Choice(MISSING), default="keep", show_default=True, help="How to treat missing values.")
@click.option("--source-column", metavar="NAME", help="Add a column with the file that each series comes from.")
@reading_options
@click.option("--replace", is_flag=True, help="Replace an existing store.")
@click.option(
    "--rename", multiple=True, metavar="OLD=NEW", help="Rename a column. Other options use the new name. May be repeated."
)
@click.option("--where", metavar="EXPR", help="Keep only rows that fulfil a condition, like \"price > 0 and country == 'DE'\".")
@click.option(
    "--derive", multiple=True, metavar="NAME=EXPR", help='Add a column, like "change=close - lag(close)". May be repeated.'
)
@click.option("--metadata", type=PATH, metavar="FILE", help="Table with one row per series, joined by the key of the series.")
@click.option("--metadata-key", metavar="COL", help="Column of --metadata with the keys (default: that of --series, or 'series').")
@click.option(
    "--metadata-missing",
    type=click.Choice(["error", "null"]),
    default="error",
    show_default=True,
    help="Series without metadata, or metadata without series: an error, or missing values.",
)
@click.option("--recipe", type=click.Choice(["icecube"]), help="Read the files of a recipe; see stoker pack --recipe NAME --help.")
@click.option("--part", metavar="I/N", help="Run only part I of N, like 3/16, to share a pack with other processes or machines.")
@click.option("--join", is_flag=True, help="Make the store of all parts; with --part, only merge a share of their rows.")
@click.option("--on", metavar="ADDRESS", help="Run on a Ray cluster, like ray://head:10001; 'ray' for one on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Hide the progress bar.")
def command(
    source: tuple[str, ...],
    store: str,
    as_json: bool,
    quiet: bool,
    wide_pattern: str | None,
    part: str | None,
    join: bool,
    on: str | None,
    **options: object,
) -> None:
    """Pack SOURCE (files, folders, or patterns in quotes) into the folder STORE, or to a URL.

    An existing store is replaced only with --replace, in one step at the end. If a pack was killed, the same command
    resumes it.

    \b
    stoker pack "prices/*.csv" prices.stoker --series symbol --time ts
    stoker pack events/ events.stoker --series event_id --memory 256MB
    stoker pack ETTh1.csv ett.stoker --wide --time date
    stoker pack load.csv load.stoker --wide --time date --timezone Europe/Berlin --duplicates mean --freq 1h
    stoker pack "raw/*.parquet" s3://bucket/events.stoker --series user --time ts
    stoker pack events.csv users.stoker --series user --where "price > 0" --metadata users.csv
    stoker pack icecube/ ice.stoker --recipe icecube
    stoker pack "raw/*.parquet" events.stoker --series user --part 3/16    # all parts, in any order, on any machines
    stoker pack "raw/*.parquet" events.stoker --series user --join
    """
    from stoker.store.pack.api import join_parts, pack, pack_part

    options.pop("recipe")
    if wide_pattern is not None:
        options["wide"] = wide_pattern
    if on is not None and (part is not None or join):
        raise click.UsageError("--on runs all parts and joins them. Leave out --part and --join.")
    with progress(unit="rows", enabled=not quiet and not as_json) as show:
        if part is not None:
            count = pack_part(list(source), store, part, merge=join, progress=show, **options)
        elif join:
            packed = join_parts(list(source), store, progress=show, **options)
        else:
            packed = pack(list(source), store, progress=show, on=on, **options)  # type: ignore[arg-type]
    if part is not None:
        tasks = f"{count:,} task{'' if count == 1 else 's'}"
        click.echo(json.dumps({"part": part, "tasks": count}) if as_json else f"part {part} is done: {tasks}")
        return
    rows = sum(entry.num_rows for entry in packed.manifest.sources) if packed.manifest else 0
    of_rows = f"{packed.num_steps:,} of {rows:,}" if options["where"] is not None else f"{rows:,}"
    _show(packed, store, f"{of_rows} rows", as_json=as_json)
    notes = packed.manifest.notes if packed.manifest and not as_json else []
    if options["wide"] and options["time"] is None and any("is not numeric and was left out by --wide" in note for note in notes):
        click.echo("note: to keep the times of the steps, name their column with --time")


def _show(packed: Store, store: str, rows: str, *, as_json: bool) -> None:
    """What was packed."""
    from stoker.store.inspect import inspect

    if as_json:
        click.echo(json.dumps(inspect(packed).to_dict()))
        return
    click.echo(f"packed {rows} into {len(packed):,} series, {packed.num_bytes / 1e6:,.1f} MB: {printable(store)}")
    for note in packed.manifest.notes if packed.manifest else []:
        click.echo(f"note: {printable(note)}")
    for column in packed.schema.values():
        texts = list(islice(column.texts, 1000)) if column.kind == "category" and column.texts is not None else []
        if texts and all(_COMMA_NUMBER.fullmatch(text.strip()) for text in texts):
            name, shown = printable(column.name), printable(texts[0])
            click.echo(f"note: column {name!r} has numbers with a decimal comma, like {shown}, stored as strings: pass --decimal ,")


@click.command("pack")
@click.argument("source", type=PATH)
@click.argument("store", type=PATH)
@click.option("--recipe", required=True, type=click.Choice(["icecube"]), help="The recipe whose files are read.")
@click.option("--split", type=click.Choice(["train", "test"]), default="train", show_default=True, help="Which files to pack.")
@click.option("--batches", metavar="N-M", help="Numbers of the files to pack, like 1-650 (default: all that the metadata name).")
@click.option("--replace", is_flag=True, help="Replace an existing store.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Hide the progress bar.")
def _icecube(source: str, store: str, recipe: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Pack the files of the IceCube competition in the folder SOURCE, as downloaded, into the folder STORE.

    SOURCE has train_meta.parquet (or train_meta/batch_*.parquet), train/batch_*.parquet and sensor_geometry.csv. The store has a
    series per event. Memory stays below 1 GB. If a pack was killed, the same command resumes it.

    \b
    stoker pack icecube/ ice.stoker --recipe icecube
    stoker pack icecube/ train.stoker --recipe icecube --batches 1-650
    stoker pack icecube/ test.stoker --recipe icecube --split test
    """
    from stoker.recipes.icecube import pack_events

    with progress(unit="pulses", enabled=not quiet and not as_json) as show:
        packed = pack_events(source, store, progress=show, **options)
    _show(packed, store, f"{packed.num_steps:,} pulses", as_json=as_json)


_Pack.recipes["icecube"] = _icecube
