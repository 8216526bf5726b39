"""`find_sources`: the readers of what the user passes: files, patterns, folders, always in sorted order, tables and streams.

Tables are dicts, lists and arrays, stores, pandas and polars frames. Streams are DuckDB relations, lazy frames of polars, data sets of
pyarrow and Ray, and all else that exports an Arrow stream: they are read batch by batch, and never collected.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa

from stoker._disk import check_path
from stoker._text import how_to_install, is_url
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceNotFoundError, StokerError
from stoker.extend import folder_format
from stoker.store.formats.base import (
    COMPRESSED,
    MAX_LIMITS,
    DataSource,
    NamedSource,
    ReadLimits,
    RowLocation,
    Task,
    batch_chunks,
    batch_rows,
    suffix_of,
)
from stoker.store.formats.csv import Csv, CsvSource
from stoker.store.opening import open_store
from stoker.store.store import Store

_FORMATS = {
    "parquet:ParquetSource": ".parquet .pq",
    "arrow:ArrowSource": ".arrow .feather .ipc",
    "jsonl:JsonLinesSource": ".jsonl .ndjson",
    "numpy:NpySource": ".npy",
    "numpy:NpzSource": ".npz",
    "ucr:AeonSource": ".ts .arff",
}
_READERS = {suffix: reader for reader, suffixes in _FORMATS.items() for suffix in suffixes.split()}  # imported when used
SUFFIXES = [".csv", ".tsv", ".txt", *_READERS]
_PLAIN_ONLY = {".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".npz", ".ts", ".arff"}


@dataclass(frozen=True)
class Files:
    """Files with a column that names the file of each row: `pack(Files("runs/*.csv", name_column="run"), ...)`.

    The column holds categories: the names of the files, relative to the folder that all of them share. Where rows of one series may
    come from several files (`series=`), it has one value per step, else one per series.

    Args:
        source: A file, a pattern, a folder, or a list of these.
        name_column: The name of the column. No file may have a column of this name.
    """

    source: object
    _: KW_ONLY
    name_column: str


def find_sources(
    given: object,
    *,
    csv: Csv | None = None,
    table: bool = False,
    wide: bool = False,
    left_out: list[Path] | None = None,
    limits: ReadLimits = MAX_LIMITS,
) -> list[DataSource]:
    """Find the readers of a path, a pattern, a folder, a list of these, or a table in memory; readers are what they are.

    Args:
        given: what the user passed as the source.
        csv: how text tables are written.
        table: rows are steps even where a format would hold one series per row (`.tsv`).
        wide: each column is a series.
        left_out: gets the files that no reader knows.
        limits: what no part of a file may exceed.

    Raises:
        SourceNotFoundError: no file matches.
        SourceEmptyError: a folder or file has nothing to read.
        SourceInvalidError: a file cannot be read.

    Example:
        >>> [source.name for source in find_sources({"x": [1, 2]})]
        ['<dict>']
    """
    if isinstance(given, Files):
        sources = find_sources(given.source, csv=csv, table=table, wide=wide, left_out=left_out, limits=limits)
        return [NamedSource(source, given.name_column) for source in sources]
    csv = csv if csv is not None else Csv()
    if isinstance(given, DataSource):
        return [given]
    if isinstance(given, list) and given and all(isinstance(one, DataSource) for one in given):
        return list(given)
    if is_table(given):
        return [stream_source(given) if is_stream(given) else table_source(given)]
    inputs = [given] if isinstance(given, str | os.PathLike) else list(given) if isinstance(given, Iterable) else None
    if not inputs or not all(isinstance(given_input, str | os.PathLike) for given_input in inputs):
        raise OptionError(f"{type(given).__name__} is not data. Pass a path, a pattern, a folder, or a table.", parameter="source")
    urls = [is_url(os.fspath(given_input)) for given_input in inputs]
    if any(urls):
        if not all(urls):
            raise OptionError(
                "some sources are URLs and others are paths. Pack either files on a disk or files in object storage.",
                parameter="source",
            )
        return _remote_sources([os.fspath(given_input) for given_input in inputs], csv, table, limits)
    # A file that two patterns match, or a folder and a pattern, is read once.
    others: list[Path] = []
    named = {path.absolute(): path for given_input in inputs for path in _resolve(os.fspath(given_input), others)}
    paths = list(named.values())
    if left_out is not None:
        left_out.extend(path for path in sorted({other.absolute() for other in others}) if path not in named)
    parent = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    sources = [_source(path, _name(path, parent), csv, table, wide, limits) for path in paths]
    for source in sources:
        source.limits = limits
    return sources


def _remote_sources(urls: list[str], csv: Csv, table: bool, limits: ReadLimits) -> list[DataSource]:
    """The readers of files in object storage."""
    from stoker.store.formats.remote_files import check_readable, find_remote

    named = {str(path): path for url in urls for path in find_remote(url)}
    parent = "/".join(os.path.commonprefix([url.split("/")[:-1] for url in named]))  # noqa: RUF071 (of lists)
    sources = []
    for url, path in named.items():
        check_readable(path)
        # Readers ask a path for its name, its size and to be opened, which this one can do as well.
        source = _reader(cast(Path, path), url[len(parent) :].lstrip("/"), csv, table, False, limits)
        source.limits = limits
        sources.append(source)
    return sources


def _name(path: Path, parent: Path) -> str:
    """The name for the manifest: relative to the folder that all sources share, and the same in every locale."""
    try:
        return os.fsencode(path.absolute().relative_to(parent).as_posix()).decode("utf-8")
    except UnicodeDecodeError:
        raise SourceInvalidError(f"{str(path)!a} has a name that is not UTF-8. Rename it, or leave it out.") from None


def _resolve(given: str, left_out: list[Path]) -> list[Path]:
    path = check_path(given)
    if path.is_dir():
        return _walk(path, left_out)
    if path.exists():
        return [path]
    if not glob.has_magic(given):
        raise SourceNotFoundError(f"{given} does not exist. Give a file, a folder, or a pattern like 'data/*.csv' (in quotes).")
    paths: list[Path] = []
    for match in sorted(Path(match) for match in glob.glob(given, recursive=True)):
        if match.is_dir():
            with contextlib.suppress(SourceEmptyError):  # a folder among others may be empty
                paths.extend(_walk(match, left_out))
        else:
            paths.append(match)
    if not paths:
        raise SourceNotFoundError(f"no file matches {given!r} (looked in {Path.cwd()}).")
    return paths


def _walk(folder: Path, left_out: list[Path]) -> list[Path]:
    """All files below a folder that some reader knows; a folder that is one data set is one source."""
    if _is_dataset(folder):
        left_out.extend(_beside(folder))
        return [folder]
    paths: list[Path] = []
    others: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=_refuse_unlistable):
        folders.sort()
        for name in list(folders):
            path = Path(root, name)
            if _is_store(path):
                folders.remove(name)  # a store beside its sources is a result, not a source
            elif _is_dataset(path):
                paths.append(path)
                folders.remove(name)
                left_out.extend(_beside(path))
            elif path.is_symlink():
                raise SourceInvalidError(
                    f"{path} is a link to a folder, which is not followed. Pass its target as a source, or remove it."
                )
        for name in sorted(names):
            (paths if suffix_of(Path(name)) in SUFFIXES else others).append(Path(root, name))
    if not paths:
        seen = f"it holds {len(others):,} other files, like {others[0].name!r}" if others else "it is empty"
        raise SourceEmptyError(f"folder {folder} holds nothing to read: looked for {' '.join(SUFFIXES)}, but {seen}.")
    left_out.extend(others)
    return sorted(paths)


def _beside(folder: Path) -> list[Path]:
    """Files in a folder of a registered format that are not read with it."""
    registered = folder_format(folder)
    return [] if registered is None else registered.extra_files(folder)


def _refuse_unlistable(error: OSError) -> NoReturn:
    raise SourceInvalidError(f"{error.filename} cannot be read: {error.strerror}. Change its mode, or leave it out.")


def _is_dataset(folder: Path) -> bool:
    """A folder that is one data set: a store, a Hugging Face data set, or of a format that another package registers."""
    return _is_store(folder) or _is_hugging_face(folder) or folder_format(folder) is not None


def _is_store(folder: Path) -> bool:
    """A store, or the folder of an interrupted pack."""
    if (folder / ".lock").is_file() and (folder / "work").is_dir():
        return True
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b'"stoker"' in file.read(64)


def _is_hugging_face(folder: Path) -> bool:
    one_split = all((folder / name).is_file() for name in ("state.json", "dataset_info.json"))
    return one_split or (folder / "dataset_dict.json").is_file()


def _source(path: Path, name: str, csv: Csv, table: bool, wide: bool, limits: ReadLimits) -> DataSource:
    """The reader for a path."""
    if path.is_dir():
        return _dataset(path, name)
    if not path.exists():
        raise SourceInvalidError(f"{path} is a link to {path.readlink()}, which does not exist. Remove it, or leave it out.")
    if not path.is_file():
        raise SourceInvalidError(f"{path} is not a plain file. Leave it out.")
    if not os.access(path, os.R_OK):
        raise SourceInvalidError(f"{path} cannot be read: permission denied. Change its mode, or leave it out.")
    if path.stat().st_size == 0:
        raise SourceEmptyError(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")
    return _reader(path, name, csv, table, wide, limits)


def _reader(path: Path, name: str, csv: Csv, table: bool, wide: bool, limits: ReadLimits) -> DataSource:
    """The reader of a file that is there."""
    suffix = suffix_of(path)
    if suffix in _PLAIN_ONLY and path.suffix.lower() in COMPRESSED:
        raise SourceInvalidError(f"{path} is a compressed {suffix} file, which cannot be read in parts. Decompress it first.")
    if suffix in (".csv", ".tsv", ".txt"):
        from stoker.store.formats.ucr import UcrSource, is_ucr

        # A `.tsv` without header that begins with a label is a UCR set, unless rows are steps.
        is_set = suffix == ".tsv" and not table and csv == Csv() and is_ucr(path, limits)
        return UcrSource(path, name) if is_set else CsvSource(path, name, csv)
    if suffix in _READERS:
        module, _, reader = _READERS[suffix].partition(":")
        options = {"wide": wide} if suffix == ".npy" else {}
        source: DataSource = getattr(import_module(f"stoker.store.formats.{module}"), reader)(path, name, **options)
        return source
    if suffix == ".json":
        raise SourceInvalidError(
            f"{path} is a JSON document. Write one object per line (.jsonl), or read it with DuckDB ({how_to_install('sql')}), "
            f"then stoker pack --sql \"SELECT * FROM read_json('{path}')\"."
        )
    known = " ".join(SUFFIXES)
    raise SourceInvalidError(
        f"{path} has the suffix {suffix or 'none'!r}, which no reader knows. Known: {known} (and .gz .zst .bz2 .xz of text)."
    )


def _dataset(path: Path, name: str) -> DataSource:
    if _is_hugging_face(path):
        from stoker.store.formats.arrow import HuggingFaceSource

        return HuggingFaceSource(path, name)
    registered = folder_format(path)
    if registered is None:
        return TableSource(open_store(path).to_arrow(), name, path)
    source: DataSource = registered.open(path, name)
    return source


# Tables in memory.


class TableSource(DataSource):
    """An Arrow table in memory, or one that a store's files are mapped as. A position is a number of rows."""

    def __init__(self, table: pa.Table, name: str, path: Path | None = None) -> None:
        self.name = name
        self.path = path
        self.num_bytes = table.nbytes
        self._table = table

    def schema(self) -> pa.Schema:
        return self._table.schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self._table.to_batches(), schema, start=start, chunk_bytes=chunk_bytes)


def is_table(given: object) -> bool:
    """Whether `given` is data rather than a path or a list of paths."""
    if isinstance(given, Mapping | np.ndarray | Store) or is_stream(given) or hasattr(given, "__arrow_c_stream__"):
        return True
    if isinstance(given, list | tuple):
        return bool(given) and np.ndim(given[0]) >= 1
    return _library(given) in ("pandas", "polars")  # also frames of older versions


def table_source(given: Any) -> DataSource:
    """Data in memory as a source; numbers are not copied."""
    name = type(given).__name__
    try:
        return TableSource(_table(given), f"<{name}>")
    except StokerError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        advice = next(advice for text, advice in _ADVICE.items() if text in reason)
        raise SourceInvalidError(f"the {name} cannot be read as a table: {reason}. {advice}") from error


def _table(given: Any) -> pa.Table:
    if isinstance(given, Mapping):
        return pa.table({str(name): _column(str(name), values) for name, values in given.items()})
    if isinstance(given, np.ndarray):
        return pa.table({"value": _column("value", given)})
    if isinstance(given, list | tuple):
        return pa.table({"value": _lists("value", list(given))})
    if _library(given) == "pandas":
        # Its index becomes columns, as it is data: an event id, times. Integers without a name are only row numbers.
        frame = given.to_frame(given.name if given.name is not None else "value") if type(given).__name__ == "Series" else given
        is_data = any(name is not None for name in frame.index.names) or frame.index.dtype.kind not in "iu"
        given = frame.reset_index(drop=not is_data).rename(columns=str)
    # All that speaks the Arrow PyCapsule interface. Stores and polars have `to_arrow`: it also turns the string views of polars,
    # which the compute functions of Arrow do not know, into strings.
    table = given.to_arrow() if hasattr(given, "to_arrow") else pa.table(given)
    return table if isinstance(table, pa.Table) else pa.table({given.name or "value": table})


# Streams: made batch by batch while they are packed.

_BATCH_BYTES = 8 << 20


class StreamSource(DataSource):
    """An Arrow stream. A position is a number of rows. With `once`, the stream cannot be made again."""

    def __init__(self, name: str, make: Callable[[], pa.RecordBatchReader], *, once: bool) -> None:
        self.name, self.path, self.num_bytes = name, None, 0
        self._make, self.once = make, once
        with self._reading():
            self._first: pa.RecordBatchReader | None = make()
            self._schema = _without_views(self._first.schema)

    def schema(self) -> pa.Schema:
        return self._schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self._batches(), schema, start=start, chunk_bytes=chunk_bytes)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        reader, self._first = self._first, None
        if reader is None and self.once:
            raise self.invalid(
                "is a stream that can be read only once, but it has integers with missing values, so all rows have to be read first. Name "
                "a float type with dtype=, or give a table, a file or a query that can run again."
            )
        with self._reading():
            reader = reader or self._make()
        while True:
            with self._reading():
                batch = next(reader, None)
                if batch is None:
                    return
                batch = batch if batch.schema.equals(self._schema) else batch.cast(self._schema)
            yield batch

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what the library of the stream raises into one line that names the stream."""
        try:
            yield
        except (StokerError, MemoryError):
            raise
        except Exception as error:
            raise self.invalid(f"cannot be read: {(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')}.") from error


def is_stream(given: object) -> bool:
    """Whether `given` is made batch by batch, and so is larger than memory perhaps."""
    if _library(given) in ("polars", "ray"):
        return type(given).__name__ in ("LazyFrame", "Dataset", "MaterializedDataset")
    if isinstance(given, Mapping | np.ndarray | Store | pa.Table | pa.RecordBatch) or _library(given) == "pandas":
        return False
    return isinstance(given, pa.RecordBatchReader) or hasattr(given, "__arrow_c_stream__") or _is_dataset_of_arrow(given)


def _is_dataset_of_arrow(given: object) -> bool:
    return _library(given) == "pyarrow" and hasattr(given, "scanner")


def stream_source(given: Any) -> StreamSource:
    """The source of a stream. Queries, and what has a length, can be read again."""
    library, name = _library(given), f"<{type(given).__name__}>"
    if library == "polars":
        return StreamSource(name, partial(_lazy_batches, given), once=False)
    if library in ("duckdb", "_duckdb"):
        rows = batch_rows(pa.schema([(column, pa.null()) for column in given.columns]), _BATCH_BYTES)
        return StreamSource(name, partial(getattr(given, "to_arrow_reader", None) or given.fetch_record_batch, rows), once=False)
    if library == "ray":
        return StreamSource(name, partial(_block_batches, _blocks_in_order(given)), once=False)
    if _is_dataset_of_arrow(given):
        return StreamSource(name, partial(_dataset_batches, given), once=False)
    if isinstance(given, pa.RecordBatchReader):
        return StreamSource(name, lambda: given, once=True)
    return StreamSource(name, partial(pa.RecordBatchReader.from_stream, given), once=not hasattr(type(given), "__len__"))


def _lazy_batches(frame: Any) -> pa.RecordBatchReader:
    """The rows of a lazy frame of polars, in its order."""
    schema = frame.limit(0).collect().to_arrow().schema
    rows = batch_rows(schema, _BATCH_BYTES)
    tables = (part.to_arrow() for part in frame.collect_batches(chunk_size=rows, maintain_order=True, lazy=True))
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.cast(schema).to_batches()))


def _dataset_batches(dataset: Any) -> pa.RecordBatchReader:
    """The rows of a data set of PyArrow, which by itself reads ahead more than a gigabyte."""
    rows = batch_rows(dataset.schema, _BATCH_BYTES)
    return dataset.scanner(batch_size=rows, batch_readahead=2, fragment_readahead=1).to_reader()


def _blocks_in_order(dataset: Any) -> list[Any]:
    """A data set of Ray, computed once: a pack may read its rows twice. Rows of one series keep its order."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        blocks: list[Any] = dataset.materialize().to_arrow_refs()
    finally:
        options.preserve_order = before
    if not blocks:
        raise SourceEmptyError("the ray.data.Dataset has no rows, so there is nothing to pack.")
    return blocks


def _block_batches(blocks: Sequence[Any]) -> pa.RecordBatchReader:
    import ray

    schema = ray.get(blocks[0]).schema
    return pa.RecordBatchReader.from_batches(schema, (batch for block in blocks for batch in ray.get(block).to_batches()))


def _without_views(schema: pa.Schema) -> pa.Schema:
    """String views become strings: the compute functions of Arrow do not know them."""
    kinds = [pa.large_string() if pa.types.is_string_view(kind) else kind for kind in schema.types]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]


_ADVICE = {  # what to do about an error of Arrow, by what its text says
    "expected length": "Give all columns the same number of rows.",
    "too large": "Give numbers that fit into 64 bits, or floats.",
    "tried to convert": "Give each column one type.",
    "xpected": "Give each column one type.",
    "": "Give numbers, strings, booleans, dates, or lists of these.",
}


def _column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, list | tuple) and values and np.ndim(values[0]) >= 1:
        return _lists(name, list(values))
    if isinstance(values, list | tuple):
        return pa.array(values)  # stricter than NumPy, which rounds integers beside floats and cuts strings at a NUL
    if _library(values) in ("pandas", "polars") and not isinstance(getattr(values, "dtype", np.dtype(object)), np.dtype):
        # NumPy would round integers beside missing values, and make objects of categories and times with a zone.
        return values.to_arrow() if hasattr(values, "to_arrow") else pa.array(getattr(values, "array", values), from_pandas=True)
    array = np.asarray(values)
    if array.dtype.kind == "O" and not all(isinstance(value, str) or value is None for value in array.ravel()):
        raise OptionError(f"column {name!r} is an object array; give it numbers or strings of one type.", column=name)
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
    if array.ndim != 1:
        raise OptionError(f"column {name!r} has {array.ndim} axes; expected 1 (steps) or 2 (series, steps).", column=name)
    return pa.array(_native(array))


def _lists(name: str, rows: list[Any]) -> pa.Array:
    if all(isinstance(row, list | tuple) for row in rows):
        return pa.array(rows)
    arrays = [_native(np.asarray(row)) for row in rows]
    if any(array.ndim != 1 or array.dtype.kind not in "biuf" for array in arrays):
        raise OptionError(f"column {name!r} must be a list of one-dimensional arrays of numbers.", column=name)
    try:
        return pa.array(arrays, pa.large_list(pa.infer_type(arrays).value_type))
    except pa.ArrowInvalid as error:
        raise OptionError(f"column {name!r} has rows of different types: {error}. Give all rows one type.", column=name) from None


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(array.dtype.newbyteorder("="), copy=False)
