"""`pack`: raw files become a store, all or nothing. `packer.Packer` does the work."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from stoker._disk import check_path
from stoker._text import is_url
from stoker.errors import OptionError, SourceTooLargeError
from stoker.store.formats.csv import Dialect
from stoker.store.opening import open_store
from stoker.store.pack.on_ray import pack_on_ray
from stoker.store.pack.options import (
    DEFAULT_MEMORY,
    Ambiguous,
    Duplicates,
    Missing,
    Nonexistent,
    PackOptions,
    parse_bytes,
    parse_dtypes,
    parse_names,
    parse_threads,
)
from stoker.store.pack.packer import Packer, Progress, quiet
from stoker.store.remote import open_remote, uploading
from stoker.store.store import Store


def pack(
    source: object,
    path: str | os.PathLike[str],
    *,
    series: str | None = None,
    time: str | None = None,
    sort: bool = False,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    dtype: str | Mapping[str, str] | type | None = None,
    missing: Missing = "keep",
    duplicates: Duplicates | None = None,
    freq: str | None = None,
    regular: bool = True,
    timezone: str | None = None,
    ambiguous: Ambiguous = "infer",
    nonexistent: Nonexistent = "error",
    source_column: str | None = None,
    delimiter: str | None = None,
    quote: str = '"',
    escape: str | None = None,
    header: bool | None = None,
    skip: int = 0,
    null: str | Sequence[str] = (),
    decimal: str = ".",
    encoding: str = "utf-8",
    time_format: str | None = None,
    memory: str | int = DEFAULT_MEMORY,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = quiet,
    sql: str | None = None,
    on: str | None = None,
) -> Store:
    """Pack raw data into a store at `path`, and open it. A pack that was killed resumes when it is called again.

    Args:
        source: a file, a pattern like "data/*.csv", a folder, a list of these, or a table in memory: a mapping of arrays, an array, a
            list of arrays, a store, a DataFrame, or a `ray.data.Dataset`. A DuckDB relation, a lazy frame of Polars, a data set of
            PyArrow and all else that exports an Arrow stream are packed as they stream, without being collected. Files may be URLs
            like "s3://bucket/raw/*.parquet" (Parquet, Arrow, text tables and JSON lines).
        path: the folder of the new store, or a URL like "s3://bucket/events.stoker". For a URL the store is packed on the local disk,
            then uploaded.
        series: the column whose values group rows into series. Without it each file is one series, or each row where columns hold
            lists.
        time: the column that must increase within a series.
        sort: sort each series by `time` instead of refusing unsorted or equal times.
        wide: make each numeric column of each file a series of its own, named like the column.
        columns: the columns to pack, as a list or "a,b,c" (default: all).
        dtype: the type of all numeric columns, or of some: "float32", "close=float32,volume=int64", or a mapping.
        missing: what to do with missing values: "keep" them as NaN, raise an "error", fill forward ("ffill"), or "drop" their rows.
        duplicates: what to do with rows of a series that have equal times: raise an "error", store the "first" or "last" of them,
            or "keep" all. Without it they are an error, or kept with `sort=True`.
        freq: the distance between two steps, like "15min", "1h", "1d" or "1mo". Steps that are missing are added, without values.
        regular: whether `freq` adds missing steps. With False it is only declared, and times are not checked.
        timezone: the zone of local times without one, like "Europe/Berlin". They are stored as UTC, with the zone as their unit.
        ambiguous: what to do with local times that occur twice when daylight saving ends: "infer" it from the order of the rows,
            take the "first" or the "last", or raise an "error".
        nonexistent: what to do with local times that are skipped when daylight saving begins: raise an "error", or "shift" them to
            the first time that exists.
        source_column: add a column of categories of this name, with the file that each series comes from. Where rows of one series
            may come from several files (`series=`), it has one value per step.
        delimiter: the field delimiter of text tables (default: auto-detected).
        quote: the quote character of text tables.
        escape: the escape character of text tables.
        header: whether the first line holds the column names (default: auto-detected).
        skip: the number of lines to skip before the header.
        null: further strings that mean a missing value.
        decimal: the decimal point of text tables.
        encoding: the encoding of text files.
        time_format: the strptime format of times that are not ISO 8601.
        memory: how much memory the pack may use, like "256MB".
        threads: the number of threads (default: one per core).
        replace: replace a store at `path`, in one step at the end.
        progress: called with the phase, the share of it that is done (0 to 1), and the rows so far.
        sql: pack the result of this DuckDB statement over the table `source`, which is the given source, like
            "SELECT symbol, ts, px AS price FROM source JOIN 'meta.csv' USING (symbol) WHERE px > 0". Every other option uses the columns
            of the result. DuckDB may use half as much memory as `memory`, then it spills to the temporary folder of the system.
        on: run on a Ray cluster: its address, like "ray://head:10001", or "ray" for the one that runs on this machine, or a new one.

    Returns:
        The store, opened.

    Raises:
        OptionError: an argument is invalid.
        SourceError: the input cannot be read, or does not fit the options. The message names file and row.
        StoreExistsError: there is a store at `path`, and `replace` is False.
        StoreLockedError: another process is packing to `path`.
        DiskError: the disk refused an operation. `path` is as before.

    Example:
        >>> import tempfile
        >>> table = {"symbol": ["B", "A", "A"], "close": [2.5, 1.0, 1.5]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = pack(table, folder + "/prices.stoker", series="symbol")
        ...     [(one["symbol"], one["close"].tolist()) for one in store]
        [('A', [1.0, 1.5]), ('B', [2.5])]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = pack(table, folder + "/a.stoker", series="symbol", sql="SELECT symbol, 2 * close AS x FROM source WHERE close < 2")
        ...     store[0]["x"].tolist()
        [2.0, 3.0]
    """
    options = _options({name: value for name, value in locals().items() if name not in ("source", "path")})
    if on is not None:
        pack_on_ray(on, source, path, options, progress, replace=replace)
        return open_remote(str(path)) if is_url(path) else open_store(path)
    folder = None if is_url(path) else check_path(path)
    with _within_memory(options), contextlib.ExitStack() as stack:
        target = stack.enter_context(uploading(str(path), replace=replace)) if folder is None else folder
        packer = Packer(source, target, options, progress)
        packed = packer.run(replace=replace or folder is None)
    return open_remote(str(path)) if folder is None else packed


def _options(given: Mapping[str, Any]) -> PackOptions:
    """The options of a pack, from the arguments of `pack` that are not given elsewhere."""
    known = {one.name: one.default for one in inspect.signature(pack).parameters.values() if one.kind is one.KEYWORD_ONLY}
    if unknown := sorted(set(given) - set(known)):
        raise OptionError(f"{unknown[0]}= is not an option of pack.")
    chosen = {**known, **given}
    default_dtype, dtypes = parse_dtypes(chosen["dtype"])
    null = chosen["null"]
    return PackOptions(
        **{name: chosen[name] for name in _PLAIN},
        columns=parse_names(chosen["columns"]),
        dtype=default_dtype,
        dtypes=dtypes,
        dialect=Dialect(**{name: chosen[name] for name in _DIALECT}, null=(null,) if isinstance(null, str) else tuple(null)),
        memory_bytes=parse_bytes(chosen["memory"]),
        threads=parse_threads(chosen["threads"]),
    )


_PLAIN = ("series time sort wide missing duplicates freq regular timezone ambiguous nonexistent source_column sql").split()
_DIALECT = "delimiter quote escape header skip decimal encoding time_format".split()


@contextlib.contextmanager
def _within_memory(options: PackOptions) -> Iterator[None]:
    """Let Arrow return freed memory at once where there is little, and say what to do where there is none."""
    pool = pa.default_memory_pool()
    try:
        if options.memory_bytes < parse_bytes(DEFAULT_MEMORY):
            # Arrow's own pools keep tens of megabytes.
            pa.set_memory_pool(pa.system_memory_pool())
        yield
    except MemoryError as error:
        raise SourceTooLargeError(
            f"the pack may use {options.memory_bytes >> 20:,} MB (memory=), but the system did not provide that much. "
            "Pass a smaller memory=, threads=1, or leave large columns out with columns=[...]."
        ) from error
    finally:
        pa.set_memory_pool(pool)
