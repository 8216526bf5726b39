"""`stoker encode`: events become a store of sequences. `stoker indicators`: bars become a store with their indicators."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base
from stoker.errors import OptionError


@click.command("encode", cls=base.Command, doing="encoding {source} as sequences", writes="store")
@click.argument("source", nargs=-1, required=True, type=base.TABLE)
@click.argument("store", type=base.PATH)
@base.key_option("key", "Column with the key of each row; the rows of a key are one sequence.", required=True)
@click.option("--stats", type=base.PATH, metavar="FILE", help="Also analyse columns and lengths, and write the statistics as JSON.")
@click.option("--columns", metavar="A,B,…", help="Columns to encode. [default: all]")
@click.option(
    "--context",
    "contexts",
    type=base.TABLE,
    metavar="FILE",
    help="Table with a column like --key: the sequences to make, even empty ones. Its other columns are stored per series.",
)
@base.time_option
@base.sort_option
@click.option("--dtype", metavar="TYPE", help="float32, or item=int16,price=float32. A value that does not fit is an error.")
@base.missing_option()
@base.memory_options
@base.overwrite_option("Replace an existing STORE, and the file of --stats.", "replace")
@base.json_option
def command(source: tuple[str, ...], store: str, key: str, stats: str | None, as_json: bool, **options: Any) -> None:
    """Encode SOURCE (files, folders, or patterns in quotes) as sequences: rows with the same --key, in the order of the input.

    Rows of a key may be anywhere in the input, which may be larger than memory. The result is a store; stoker.Feed with
    stoker.Sequences makes batches of it. An existing store is replaced only with --replace, at the end.

    \b
    stoker encode events.parquet events.stoker --key user_id
    stoker encode "events/*.csv" events.stoker --key user_id --context users.csv --stats stats.json
    """
    from stoker.store.inspect import inspect
    from stoker.store.writer import check_target
    from stoker_recipes.tabular.sequences.store import pack_sequences

    statistics = None
    if stats is not None:
        if any(Path(one).resolve() == Path(stats).resolve() for one in source):
            raise OptionError(f"{stats} is both a source and --stats. Choose another name for the statistics.")
        if Path(stats).exists() and not options["replace"]:
            raise OptionError(f"{stats} exists already. Choose another name for --stats, or pass --replace.")
        check_target(Path(store), replace=options["replace"])  # before a long analysis
        from stoker_recipes.tabular.statistics.analyze import analyze  # loads numba, which a pack does not need

        statistics = analyze(list(source), columns=options["columns"], threads=options["threads"])
    with base.bar("rows") as show:
        packed = pack_sequences(list(source), store, key=key, progress=show, **options)
    if statistics is not None and stats is not None:
        statistics.with_lengths(key, packed.lengths).save(Path(stats))
    if as_json:
        click.echo(json.dumps(inspect(packed).to_dict()))
        return
    empty = int((packed.lengths == 0).sum())
    without = f" ({empty:,} without rows)" if empty else ""
    size = readable_bytes(packed.num_bytes)
    click.echo(f"encoded {packed.num_steps:,} rows as {len(packed):,} sequences{without}, {size}: {printable(store)}")
    if stats is not None:
        click.echo(f"statistics: {printable(stats)}")
    for note in packed.manifest.notes if packed.manifest and not base.is_quiet() else []:
        click.echo(f"note: {printable(note)}")


@click.command("indicators", cls=base.Command, doing="computing indicators of {source}", writes="store")
@click.argument("source", nargs=-1, required=True, type=base.TABLE)
@click.argument("store", type=base.PATH)
@click.option("--spec", required=True, type=base.SPEC, metavar="FILE", help="JSON file with the features.")
@click.option("--name", default="features", show_default=True, metavar="NAME", help="Name of the column with all features.")
@click.option("--compat", type=click.Choice(["sentio"]), help="Compute as Sentio's C++ builder does, bit for bit.")
@base.key_option("series")
@base.time_option
@base.sort_option
@base.memory_options
@base.overwrite_option("Replace an existing STORE.", "replace")
@base.json_option
def indicators_command(
    source: tuple[str, ...], store: str, spec: str, name: str, compat: str | None, replace: bool, as_json: bool, **options: Any
) -> None:
    """Compute the features of SOURCE: a store of bars, or raw files of them (as for `stoker pack`).

    Bars have those of the columns open, high, low, close and volume that the spec needs. Features are computed series by
    series, and are NaN where they are not ready. The store has the bars, and one column of all features. An existing store is replaced
    only with --replace.

    \b
    stoker indicators bars.csv features.stoker --spec features.json
    stoker indicators bars.csv features.stoker --spec features.json --series symbol --time ts
    stoker indicators bars.stoker features.stoker --spec features.json
    """
    from stoker.store.inspect import inspect
    from stoker.store.manifest import MANIFEST_NAME
    from stoker.store.opening import open_store
    from stoker.store.writer import check_target
    from stoker_recipes.tfa.indicators.bars import packed_bars
    from stoker_recipes.tfa.indicators.engine import write_features
    from stoker_recipes.tfa.indicators.spec import parse_spec

    wanted = parse_spec(Path(spec), compat=compat)  # before a long pack
    check_target(Path(store), replace=replace)
    with contextlib.ExitStack() as opened:
        show = opened.enter_context(base.bar("bars"))
        if len(source) > 1 or not (Path(source[0]) / MANIFEST_NAME).is_file():
            bars = opened.enter_context(packed_bars(source, Path(store), progress=show, **base.pack_arguments(options)))
        elif options["series"] or options["time"] or options["sort"]:
            raise OptionError(f"{source[0]} is a store: --series, --time and --sort are for raw bars.")
        else:
            bars = open_store(source[0])
        written = write_features(bars, wanted, store, name=name, threads=options["threads"], replace=replace, progress=show)
    if as_json:
        report = {"features": list(wanted.names), "emit_from": wanted.emit_from, "spec_hash": wanted.content_hash}
        click.echo(json.dumps({**inspect(written).to_dict(), **report}))
        return
    width = f"{len(wanted.features)} features from bar {wanted.emit_from} on"
    click.echo(f"computed {width} for {written.num_steps:,} bars in {len(written):,} series: {printable(store)}")
