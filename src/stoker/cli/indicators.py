"""`stoker indicators`: bars become a store of bars and their indicators."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click

from stoker._progress import progress
from stoker._text import printable
from stoker.cli.main import PATH


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
def command(
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
    from stoker.errors import OptionError
    from stoker.store.inspect import inspect
    from stoker.store.store import MANIFEST_NAME, open_store
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
