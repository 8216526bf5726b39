"""`pack`: raw files become a store, all or nothing. `packer.Packer` does the work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from stoker._disk import check_path
from stoker._text import is_url
from stoker.errors import SourceTooLargeError
from stoker.store.formats.csv import Csv
from stoker.store.opening import open_store
from stoker.store.pack.on_ray import pack_on_ray
from stoker.store.pack.options import (
    DEFAULT_MEMORY,
    Missing,
    PackOptions,
    Resources,
    Time,
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
    time: str | Time | None = None,
    sort: bool = False,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    dtype: str | Mapping[str, str] | type | None = None,
    missing: Missing = "keep",
    csv: Csv | None = None,
    sql: str | None = None,
    resources: Resources | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Pack raw data into a store at `path`, and open it. A pack that was killed resumes when it is called again.

    Args:
        source: a file, a pattern like "data/*.csv", a folder, a list of these, `Files` of them, or a table in memory: a mapping of
            arrays, an array, a list of arrays, a store, a DataFrame, or a `ray.data.Dataset`. A DuckDB relation, a lazy frame of
            Polars, a data set of PyArrow and all else that exports an Arrow stream are packed as they stream, without being
            collected. Files may be URLs like "s3://bucket/raw/*.parquet" (Parquet, Arrow, text tables and JSON lines).
        path: the folder of the new store, or a URL like "s3://bucket/events.stoker". For a URL the store is packed on the local disk,
            then uploaded.
        series: the column whose values group rows into series. Without it each file is one series, or each row where columns hold
            lists.
        time: the column that must increase within a series, or a `Time` with rules for it: a frequency, a time zone, equal times.
        sort: sort each series by `time` instead of refusing unsorted or equal times.
        wide: make each numeric column of each file a series of its own, named like the column.
        columns: the columns to pack, as a list or "a,b,c" (default: all).
        dtype: the type of all numeric columns, or of some: "float32", "close=float32,volume=int64", or a mapping.
        missing: what to do with missing values: "keep" them as NaN, raise an "error", fill forward ("ffill"), or "drop" their rows.
        csv: how text tables are written, where that is not detected: `Csv(delimiter=";", decimal=",")`.
        sql: pack the result of this DuckDB statement over the table `source`, which is the given source, like
            "SELECT symbol, ts, px AS price FROM source JOIN 'meta.csv' USING (symbol) WHERE px > 0". Every other option uses the columns
            of the result. DuckDB may use half as much memory as the pack, then it spills to the temporary folder of the system.
        resources: the memory and threads that the pack may use, or a Ray cluster: `Resources(memory="4GB")`.
        replace: replace a store at `path`, in one step at the end.
        progress: called with the phase, the share of it that is done (0 to 1), and the rows so far.

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
    given = resources if resources is not None else Resources()
    default_dtype, dtypes = parse_dtypes(dtype)
    options = PackOptions(
        series=series,
        times=time if isinstance(time, Time | None) else Time(time),
        sort=sort,
        wide=wide,
        columns=parse_names(columns),
        dtype=default_dtype,
        dtypes=dtypes,
        missing=missing,
        csv=csv if csv is not None else Csv(),
        sql=sql,
        memory_bytes=parse_bytes(given.memory),
        threads=parse_threads(given.threads),
    )
    if given.ray is not None:
        pack_on_ray(given.ray, source, path, options, progress, replace=replace)
        return open_remote(str(path)) if is_url(path) else open_store(path)
    folder = None if is_url(path) else check_path(path)
    with _within_memory(options), contextlib.ExitStack() as stack:
        target = stack.enter_context(uploading(str(path), replace=replace)) if folder is None else folder
        packer = Packer(source, target, options, progress)
        packed = packer.run(replace=replace or folder is None)
    return open_remote(str(path)) if folder is None else packed


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
            f"the pack may use {options.memory_bytes >> 20:,} MB, but the system did not provide that much. "
            "Pass a smaller Resources(memory=), Resources(threads=1), or leave large columns out with columns=[...].",
            parameter="memory",
        ) from error
    finally:
        pa.set_memory_pool(pool)
