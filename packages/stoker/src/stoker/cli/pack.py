"""`stoker pack`: convert raw files to a store."""

from __future__ import annotations

import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import click

from stoker._text import printable
from stoker.cli import command as base

if TYPE_CHECKING:
    from stoker.store.store import Store

_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")


DUPLICATES = ["error", "first", "last", "keep"]
AMBIGUOUS = ["infer", "first", "last", "error"]


def _recipe_of(args: list[str]) -> tuple[str, list[str]] | None:
    """The recipe that --recipe names, whose own version of this command parses the same arguments."""
    named = [value for flag, value in pairwise(args) if flag == "--recipe"]
    named += [arg.removeprefix("--recipe=") for arg in args if arg.startswith("--recipe=")]
    return (named[-1], args) if named else None


def show_packed(packed: Store, store: str, rows: str, *, as_json: bool) -> None:
    """Print what was packed."""
    from stoker.store.inspect import inspect

    if as_json:
        base.print_json(inspect(packed).to_dict())
        return
    click.echo(f"packed {rows} into {len(packed):,} series, {packed.num_bytes / 1e6:,.1f} MB: {printable(store)}")
    for note in packed.manifest.notes if packed.manifest else []:
        base.report(f"note: {note}")
    base.report(printable(f"next: stoker inspect {store}"))
    for column in packed.schema.values():
        texts = list(islice(column.texts, 1000)) if column.kind == "category" and column.texts is not None else []
        if texts and all(_COMMA_NUMBER.fullmatch(text.strip()) for text in texts):
            comma = f"numbers with a decimal comma, like {texts[0]}, stored as strings: pass --decimal ,"
            base.report(f"note: column {column.name!r} has {comma}")


@click.command("pack", cls=base.Command, doing="packing {source} into {store}", version="pack", recipe_of=_recipe_of)
@click.argument("source", nargs=-1, required=True, type=base.SOURCE)
@click.argument("store", type=base.STORE)
@base.series_option
@base.time_option
@base.sort_option
@click.option("--wide", is_flag=True, help="Make each numeric column of each file a separate series.")
@click.option(
    "--duplicates",
    type=click.Choice(DUPLICATES),
    help="How to treat rows of a series with equal times. Needs --sort where times are not in order. [default: error]",
)
@click.option("--freq", metavar="FREQ", help="Distance of two steps, like 15min, 1h, 1d, 1mo; missing steps are added.")
@click.option("--timezone", metavar="ZONE", help="Zone of local times, like Europe/Berlin; they are stored as UTC.")
@base.choice_option("--ambiguous", choices=AMBIGUOUS, default="infer", help="Which local time of a repeated hour.")
@click.option("--columns", metavar="A,B,…", help="Columns to pack. [default: all]")
@click.option("--dtype", metavar="TYPE", help="float32, or close=float32,volume=int64. A value that does not fit is an error.")
@base.missing_option()
@click.option("--name-column", metavar="NAME", help="Add a column with the file that each row comes from.")
@click.option("--delimiter", metavar="TEXT", help="Delimiter of text tables. [default: auto-detected]")
@click.option("--quote", default='"', show_default=True, metavar="TEXT", help="Quote character; '' for none.")
@click.option("--header/--no-header", default=None, help="Whether the first line has column names. [default: auto-detected]")
@click.option("--skip", type=int, default=0, metavar="N", help="Lines to skip at the top of text tables.")
@click.option("--null", multiple=True, metavar="TEXT", help="String that means missing, besides the usual. May be repeated.")
@click.option("--decimal", default=".", show_default=True, metavar="TEXT", help="Decimal point of text tables.")
@click.option("--encoding", default="utf-8", show_default=True, metavar="NAME", help="Encoding of text files.")
@click.option("--time-format", metavar="FORMAT", help="strptime format of times that are not ISO 8601.")
@base.memory_option
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads. [default: the cores of this process]")
@base.overwrite_option("Replace an existing store.", "replace")
@click.option(
    "--sql",
    metavar="STATEMENT",
    help="Pack the result of a DuckDB statement over the table `source`. Other options use its columns.",
)
@click.option("--recipe", metavar="NAME", help="Read the files of an installed recipe; see stoker pack --recipe NAME --help.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster, like ray://head:10001; 'ray' for one on this machine.")
@base.json_option
def command(
    source: tuple[str, ...], store: str, as_json: bool,
    **options: object,
) -> None:  # fmt: skip
    """Pack SOURCE (files, folders, or patterns in quotes) into the folder STORE, or to a URL.

    An existing store is replaced only with --overwrite, in one step at the end. If a pack was killed, the same command
    resumes it.

    \b
    stoker pack "prices/*.csv" prices.stoker --series symbol --time ts
    zcat events.csv.gz | stoker pack - events.stoker --series user
    stoker pack events/ events.stoker --series event_id --memory 256MB
    stoker pack ETTh1.csv ett.stoker --wide --time date
    stoker pack load.csv load.stoker --wide --time date --timezone Europe/Berlin --duplicates last --freq 1h
    stoker pack "raw/*.parquet" s3://bucket/events.stoker --series user --time ts
    stoker pack events.csv users.stoker --series user --sql "FROM source JOIN 'users.csv' USING (user) WHERE price > 0"
    stoker pack "raw/*.parquet" s3://bucket/events.stoker --series user --ray ray://head:10001
    """
    from stoker.store.formats.discover import Files
    from stoker.store.pack.api import pack

    options.pop("recipe")
    name_column = options.pop("name_column")
    given = list(source) if name_column is None else Files(list(source), name_column=str(name_column))
    with base.bar("rows") as show:
        packed = pack(given, store, progress=show, **base.pack_arguments(options))
    read = sum(entry.num_rows for entry in packed.manifest.sources) if packed.manifest else 0
    rows = read if options["sql"] is None else packed.num_steps
    show_packed(packed, store, f"{rows:,} rows", as_json=as_json)
    notes = packed.manifest.notes if packed.manifest and not base.is_quiet() else []
    times = [column.name for column in packed.manifest.columns if column.kind == "timestamp"] if packed.manifest else []
    if times and options["time"] is None and not options["wide"] and not base.is_quiet():
        key = "" if options["series"] else ", and --series KEY makes a series of the rows of each KEY instead of each file"
        base.report(
            f"note: the order of the times in {printable(times[0])!r} was not checked: --time {printable(times[0])} checks it{key}"
        )
    if options["wide"] and options["time"] is None and any("is not numeric and was left out by --wide" in note for note in notes):
        base.report("note: to keep the times of the steps, name their column with --time")
