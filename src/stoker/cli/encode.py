"""`stoker encode`: events become a store of sequences. `stoker indicators`: bars become a store with their indicators."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from stoker._progress import progress
from stoker._text import printable, readable_bytes
from stoker.cli.main import MISSING, PATH
from stoker.errors import OptionError


@click.command("encode", short_help="Encode a table of events as sequences.")
@click.argument("source", nargs=-1, required=True, type=PATH)
@click.option("--key", required=True, metavar="COL", help="Column with the key of each row; the rows of a key are one sequence.")
@click.option("--out", required=True, type=PATH, metavar="STORE", help="Folder of the store.")
@click.option("--stats", type=PATH, metavar="FILE", help="Also analyse columns and lengths, and write the statistics as JSON.")
@click.option("--columns", metavar="A,B,…", help="Columns to encode (default: all).")
@click.option(
    "--contexts",
    type=PATH,
    metavar="FILE",
    help="Table with a column like --key: the sequences to make, even empty ones. Its other columns are stored per series.",
)
@click.option("--time", metavar="COL", help="Column that orders the rows of a sequence; it must ascend strictly.")
@click.option("--sort", is_flag=True, help="Sort by --time, instead of an error for unsorted or equal times.")
@click.option("--dtype", metavar="TYPE", help="float32, or item=int16,price=float32. A value that does not fit is an error.")
@click.option("--missing", type=click.Choice(MISSING), default="keep", show_default=True, help="How to treat missing values.")
@click.option("--memory", default="1GB", show_default=True, help="Memory of the packing; inputs may be far larger.")
@click.option("--threads", type=int, help="Threads that decode (default: the cores this process may use).")
@click.option("--replace", is_flag=True, help="Replace a store at --out, and a file at --stats.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
def command(source: tuple[str, ...], key: str, out: str, stats: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Encode SOURCE (files, folders, or patterns in quotes) as sequences: rows with the same --key, in the order of the input.

    Rows of a key may be anywhere in the input, which may be larger than memory. The result is a store; stoker.Feed with
    stoker.Sequences makes batches of it. A store at --out is replaced only with --replace, at the end.

    \b
    stoker encode events.parquet --key user_id --out events.stoker
    stoker encode "events/*.csv" --key user_id --contexts users.csv --stats stats.json --out events.stoker
    """
    from stoker.encode.sequences.store import pack_sequences
    from stoker.store.inspect import inspect
    from stoker.store.writer import check_target

    statistics = None
    if stats is not None:
        if any(Path(one).resolve() == Path(stats).resolve() for one in source):
            raise OptionError(f"{stats} is both a source and --stats. Choose another name for the statistics.")
        if Path(stats).exists() and not options["replace"]:
            raise OptionError(f"{stats} exists already. Choose another name for --stats, or pass --replace.")
        check_target(Path(out), replace=options["replace"])  # before a long analysis
        from stoker.encode.statistics.analyze import analyze  # loads numba, which a pack does not need

        statistics = analyze(list(source), columns=options["columns"], threads=options["threads"])
    with progress(unit="rows", enabled=not quiet and not as_json) as show:
        store = pack_sequences(list(source), out, key=key, progress=show, **options)
    if statistics is not None and stats is not None:
        statistics.with_lengths(key, store.lengths).save(Path(stats))
    if as_json:
        click.echo(json.dumps(inspect(store).to_dict()))
        return
    empty = int((store.lengths == 0).sum())
    without = f" ({empty:,} without rows)" if empty else ""
    size = readable_bytes(store.num_bytes)
    click.echo(f"encoded {store.num_steps:,} rows as {len(store):,} sequences{without}, {size}: {printable(out)}")
    if stats is not None:
        click.echo(f"statistics: {printable(stats)}")
    for note in store.manifest.notes if store.manifest else []:
        click.echo(f"note: {printable(note)}")


@click.command("indicators", short_help="Compute the indicators of bars into a store.")
@click.argument("source", nargs=-1, required=True, type=PATH)
@click.option("--spec", required=True, type=PATH, metavar="FILE", help="JSON file with the features.")
@click.option("--out", required=True, type=PATH, metavar="STORE", help="The store to write: bars, and a column of all features.")
@click.option("--name", default="features", show_default=True, help="Name of that column.")
@click.option("--compat", type=click.Choice(["sentio"]), help="Compute as Sentio's C++ builder does, bit for bit.")
@click.option("--series", metavar="KEY", help="Column of raw bars with the series of each bar.")
@click.option("--time", metavar="COL", help="Column of raw bars that orders them; it must ascend strictly.")
@click.option("--sort", is_flag=True, help="Sort by --time, instead of an error for unsorted or equal times.")
@click.option("--memory", default="1GB", show_default=True, help="Memory for reading raw bars.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads (default: the cores this process may use).")
@click.option("--replace", is_flag=True, help="Replace a store at --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
def indicators_command(
    source: tuple[str, ...],
    spec: str,
    out: str,
    name: str,
    compat: str | None,
    series: str | None,
    time: str | None,
    sort: bool,
    memory: str,
    threads: int | None,
    replace: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compute the features of SOURCE: a store of bars, or raw files of them (as for `stoker pack`).

    Bars have those of the columns open, high, low, close and volume that the spec needs. Features are computed series by
    series, and are NaN where they are not ready. A store at --out is replaced only with --replace.

    \b
    stoker indicators bars.csv --spec features.json --out features.stoker
    stoker indicators bars.csv --spec features.json --out features.stoker --series symbol --time ts
    stoker indicators bars.stoker --spec features.json --out features.stoker
    """
    from stoker.encode.indicators.bars import packed_bars
    from stoker.encode.indicators.engine import write_features
    from stoker.encode.indicators.spec import parse_spec
    from stoker.store.inspect import inspect
    from stoker.store.manifest import MANIFEST_NAME
    from stoker.store.versions import open_store
    from stoker.store.writer import check_target

    wanted = parse_spec(Path(spec), compat=compat)  # before a long pack
    check_target(Path(out), replace=replace)
    with contextlib.ExitStack() as opened:
        show = opened.enter_context(progress(unit="bars", enabled=not quiet and not as_json))
        if len(source) > 1 or not (Path(source[0]) / MANIFEST_NAME).is_file():
            how = {"series": series, "time": time, "sort": sort, "memory": memory, "threads": threads, "progress": show}
            bars = opened.enter_context(packed_bars(source, Path(out), **how))
        elif series or time or sort:
            raise OptionError(f"{source[0]} is a store: --series, --time and --sort are for raw bars.")
        else:
            bars = open_store(source[0])
        written = write_features(bars, wanted, out, name=name, threads=threads, replace=replace, progress=show)
    if as_json:
        report = {"features": list(wanted.names), "emit_from": wanted.emit_from, "spec_hash": wanted.content_hash}
        click.echo(json.dumps({**inspect(written).to_dict(), **report}))
        return
    width = f"{len(wanted.features)} features from bar {wanted.emit_from} on"
    click.echo(f"computed {width} for {written.num_steps:,} bars in {len(written):,} series: {printable(out)}")
