"""`analyze`: from a table to its `Statistics`, in one pass.

    stats = stoker_recipes.tabular.analyze("events/*.parquet")
    stats["price"].quantiles[500]
    stats.save("stats.json")

Tables in memory are analysed column by column, files chunk by chunk; several columns at once, in threads. Memory is bounded by the
limits and the number of columns, whatever the number of rows: see docs/encoding/statistics.md.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from stoker import store
from stoker.errors import BadValueError, OptionError, SourceChangedError, SourceInvalidError
from stoker.extend import disk
from stoker_recipes.tabular.statistics.dates import DateColumn
from stoker_recipes.tabular.statistics.gather import AnyColumn, Asked, ColumnGatherer, CountsByKey, kind_of
from stoker_recipes.tabular.statistics.numbers import NumberColumn
from stoker_recipes.tabular.statistics.quantiles import CATEGORIES, EXACT, Limits, compiled

T = TypeVar("T")
R = TypeVar("R")


def analyze(
    source: Any,
    *,
    columns: str | Sequence[str] | None = None,
    kinds: Mapping[str, Asked] | None = None,
    exact: int = EXACT,
    categories: int = CATEGORIES,
    key: str | None = None,
    csv: store.Csv | None = None,
    threads: int | None = None,
) -> Statistics:
    """Compute missing values, quantiles, digit ranges, categories and date parts of the columns of a table, in one pass.

    Args:
        source: A table in memory (pandas, polars, Arrow, NumPy, a mapping of columns, a store), a path, a pattern, or a list of
            paths.
        columns: Names of the columns to analyse. Default: all.
        kinds: Kinds of columns whose type does not say it: numbers or booleans as "category" or "number", strings as "number" or
            "date", read as mostlyai-engine reads them. Files with such strings are read into memory.
        exact: Quantiles are exact for columns with at most this many different values; beyond, `rank_error` bounds the error.
        categories: Counts of strings are exact for at most this many different ones; beyond, `count_error` bounds the error.
        key: Column with the key of each row. Then keys are counted by their number of rows, and counts and extremes of the
            other columns take each key once.
        csv: Delimiter, quotes and so on of files in text. Default: auto-detected.
        threads: Default: one per core.

    Returns:
        The statistics, one entry per column.

    Raises:
        OptionError: An option is invalid, or names a column that does not exist.
        BadValueError: A column in memory holds values of different types.
        SourceInvalidError: A file cannot be read, or a column has a type without statistics.

    Example:
        >>> stats = analyze({"price": [1.5, 2.25, None], "item": ["tea", "rice", "tea"]})
        >>> stats["price"].num_null, stats["price"].max
        (1, 2.25)
        >>> stats["item"].cnt_values
        {'rice': 1, 'tea': 2}
    """
    limits = Limits(exact=exact, categories=categories)
    limits.check()
    threads = store.parse_threads(threads)
    sources = _sources(source, csv or store.Csv())
    names, asked = store.parse_names(columns), dict(kinds or {})
    if names is not None and not names:
        raise OptionError("columns is empty. Name some columns, or leave it out.")
    if names is not None and key is not None and key not in names:
        names = (*names, key)
    sources = _read_texts(sources, asked)
    if len(sources) == 1 and isinstance(sources[0], store.TableSource):
        return _of_table(sources[0], names, asked, limits, threads, key)
    plan = store.make_plan(sources, store.PackOptions(columns=names, csv=csv or store.Csv(), threads=threads))
    try:
        return _of_files(plan, asked, limits, key)
    except store.InferredTypeError:
        plan = replace(
            plan, schemas=[store.settled_schema(plan.sources, plan.schema, plan.options, gaps=False)] * len(plan.sources)
        )
    try:
        return _of_files(plan, asked, limits, key)
    except store.InferredTypeError as error:
        raise SourceChangedError(
            f"{error}: its values changed between two reads. Do not change files while they are read."
        ) from None


def _of_table(
    source: store.TableSource, names: Sequence[str] | None, asked: Mapping[str, str], limits: Limits, threads: int, key: str | None
) -> Statistics:
    """Column by column, so that only those in progress take memory."""
    whole = source.schema()
    for name in names or ():
        if name not in whole.names:
            raise OptionError(f"columns names {name!r}, but {source.label} has the columns {', '.join(whole.names[:20])}.")
    schema = whole if names is None else pa.schema([whole.field(name) for name in names])
    gatherers, by_key = _gatherers(schema, asked, limits, source.label, key)
    chunks = [task().table for task in source.read(schema, start=store.RowLocation(), chunk_bytes=max(source.num_bytes, 1))]
    num_rows = sum(chunk.num_rows for chunk in chunks)
    compiled(num_rows * len(schema))

    def gather(name: str) -> AnyColumn:
        gatherer = gatherers.pop(name)  # so that its memory is freed with it
        for chunk in chunks:
            gatherer.add(chunk.column(name))
        return gatherer.column()

    with _threads(min(threads, len(gatherers))) as spread:
        columns = spread(gather, list(gatherers))
    if by_key is not None:
        for chunk in chunks:
            by_key.add(chunk)
    return _result(num_rows, limits, columns, by_key)


def _of_files(plan: store.PackPlan, asked: Mapping[str, str], limits: Limits, key: str | None) -> Statistics:
    """Chunk by chunk: while the columns of one are gathered, the next ones are read."""
    options = plan.options
    by_name, by_key = _gatherers(plan.schema, asked, limits, plan.sources[0].label, key)
    gatherers = list(by_name.values())
    num_rows = 0
    with _threads(min(options.threads, len(gatherers))) as spread, ThreadPoolExecutor(options.num_readers) as readers:
        for source in plan.sources:
            tasks = source.read(plan.schema, start=store.RowLocation(), chunk_bytes=options.chunk_bytes)
            ahead = store.read_ahead(tasks, readers, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
            with closing(ahead) as chunks:
                for chunk in chunks:
                    table = chunk.table
                    compiled((num_rows + table.num_rows) * len(gatherers))
                    spread(lambda gatherer, table=table: gatherer.add(table.column(gatherer.name)), gatherers)  # type: ignore[misc]
                    if by_key is not None:
                        by_key.add(table)
                    num_rows += table.num_rows
        columns = spread(ColumnGatherer.column, gatherers)
    return _result(num_rows, limits, columns, by_key)


def _result(num_rows: int, limits: Limits, columns: list[AnyColumn], by_key: CountsByKey | None) -> Statistics:
    counted = columns if by_key is None else [by_key.counted(column) for column in columns]
    statistics = Statistics(num_rows=num_rows, limits=limits, columns=counted)
    return statistics if by_key is None else statistics.with_lengths(by_key.key, by_key.lengths())


def _gatherers(
    schema: pa.Schema, asked: Mapping[str, str], limits: Limits, where: str, key: str | None
) -> tuple[dict[str, ColumnGatherer], CountsByKey | None]:
    """The gatherer of each column, and the counts by key."""
    _check_names(schema, asked, where, key)
    kinds = {field.name: kind_of(field.name, field.type, asked.get(field.name), where) for field in schema if field.name != key}
    gatherers = {name: ColumnGatherer(name, kind, schema.field(name).type, limits) for name, kind in kinds.items()}
    return gatherers, None if key is None else CountsByKey(key, schema, kinds, limits)


def _check_names(schema: pa.Schema, asked: Mapping[str, str], where: str, key: str | None) -> None:
    """Every name is that of exactly one column."""
    name, count = max(Counter(schema.names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise SourceInvalidError(f"{where} has {count} columns named {name!r}. Give each its own name.")
    unknown = next((name for name in asked if name not in schema.names), None)
    if unknown is not None:
        raise OptionError(f"kinds names {unknown!r}, but {where} has the columns {', '.join(schema.names[:20])}.")
    if key is not None and key not in schema.names:
        raise OptionError(f"key is {key!r}, but {where} has the columns {', '.join(schema.names[:20])}.")


@contextmanager
def _threads(count: int) -> Iterator[Callable[[Callable[[T], R], Sequence[T]], list[R]]]:
    """A function like `map` that runs on `count` threads; it raises the error of the first item that failed."""
    if count <= 1:
        yield lambda work, things: [work(thing) for thing in things]
        return
    with ThreadPoolExecutor(count, thread_name_prefix="stoker-statistics") as pool:
        yield lambda work, things: list(pool.map(work, things))


# ---- sources: what the user passes, as tables ----

_SHOWN = 60


def _sources(source: Any, csv: store.Csv) -> list[store.DataSource]:
    """The sources of a path, a pattern, a list of those, a store, or a table in memory."""
    if isinstance(source, np.ndarray) and source.dtype.names:
        source = {name: source[name] for name in source.dtype.names}
    if isinstance(source, Mapping):
        source = dict(source)
        for name, values in source.items():
            # NumPy objects as Arrow reads them, where possible: integers beside None stay integers, as in pandas.
            if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1 and _is_readable(values):
                source[name] = pa.array(list(values), from_pandas=True)
    try:
        return store.find_sources(source, csv=csv, table=True)
    except (SourceInvalidError, OptionError) as error:
        raise (_unreadable(source) or error) from None


def _is_readable(values: Any) -> bool:
    try:
        pa.array(list(values), from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _unreadable(source: Any) -> BadValueError | None:
    """The error for the first column of objects that Arrow cannot read: names the value that is the reason."""
    named: Iterable[tuple[Any, Any]] = ()
    if isinstance(source, Mapping):
        named = source.items()
    elif type(source).__module__.partition(".")[0] == "pandas":
        named = source.items() if hasattr(source, "columns") else [(source.name or "value", source)]
    for name, values in named:
        objects = isinstance(values, list | tuple) or getattr(values, "dtype", None) == np.dtype(object)
        if objects and not _is_readable(values):  # else this column is not the problem
            return _bad_value(name, values)
    return None


def _bad_value(name: Any, values: Iterable[Any]) -> BadValueError | None:
    """The first value that Arrow cannot read, or else the first whose type is not that of the values before it."""
    for row, value in enumerate(values):
        if not _is_readable([value]):
            text = " ".join(repr(value).split())[:_SHOWN]
            large = isinstance(value, int)
            why = "does not fit into 64 bits" if large else "is neither numeric nor a string, boolean, date, or list of these"
            what = "Make the column floats or strings" if large else "Convert it, or leave the column out"
            return BadValueError(f"column {name!r} holds {text} ({type(value).__name__}) in row {row + 1:,}, which {why}. {what}.")
    first: type | None = None
    for row, value in enumerate(values):
        if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
            continue
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        kind = float if number else type(value)
        first = first or kind
        if kind is not first:
            before = "number" if first is float else first.__name__
            return BadValueError(
                f"column {name!r} holds {repr(value)[:_SHOWN]} ({type(value).__name__}) in row {row + 1:,}, but the values before "
                f"it are of type {before}. Give each column one type."
            )
    return None


# ---- strings that hold numbers or dates, read by pandas, as mostlyai-engine reads them ----
# The type of a column of numbers, and whether a date begins with its day or its month, depend on all values of the column. So files with
# such columns are read into memory.

_NUMBER = re.compile(r"-?[0-9]*[.]?[0-9]+(?:[eE][+-]?[0-9]+)?")
_SLASHES = r"^\s*\d{1,2}/\d{1,2}/\d{4}(?:\s|$)"


def _read_texts(sources: list[store.DataSource], asked: Mapping[str, str]) -> list[store.DataSource]:
    """The same table with numbers or dates instead of the strings that `kinds` names."""
    schema = sources[0].schema()
    texts = {name: kind for name, kind in asked.items() if kind in ("number", "date") and _may_be_text(schema, name)}
    if not texts:
        return sources
    table = store.read_table(sources)
    for name, kind in texts.items():
        values = table.column(name).cast(pa.string())
        values = parse_numbers(values, name) if kind == "number" else parse_dates(values, name)
        table = table.set_column(table.column_names.index(name), name, values)
    return [store.TableSource(table, sources[0].label)]


def _may_be_text(schema: pa.Schema, name: str) -> bool:
    kind = store.plain_type(schema.field(name).type) if name in schema.names else pa.int64()
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind))


def parse_numbers(texts: Any, name: str = "texts") -> pa.Array:
    """The numbers in strings, read as mostlyai-engine reads them: of each string the first part that looks like a number.

    Args:
        texts: An Arrow array of strings, a whole column.
        name: What messages call it.

    Returns:
        int64, uint64 or float64, whatever holds all of them; null where a string has none.

    Raises:
        OptionError: pandas, which parses them, is not installed.

    Example:
        >>> parse_numbers(pa.array(["12 EUR", "1.5", "n/a", None])).to_pylist()
        [12.0, 1.5, None, None]
    """
    coded = store.one_array(texts.cast(pa.string())).dictionary_encode()
    words = [*coded.dictionary.to_pylist(), *([None] if coded.null_count else [])]  # with missing values all are floats
    matches = [None if word is None else _NUMBER.search(word) for word in words]
    numbers = _pandas(name).to_numeric([None if match is None else match[0] for match in matches], errors="coerce")
    return pa.array(np.asarray(numbers), from_pandas=True).take(coded.indices)


def parse_dates(texts: Any, name: str = "texts") -> pa.Array:
    """The dates in strings, read as mostlyai-engine reads them.

    Args:
        texts: An Arrow array of strings, a whole column: whether the day or the month comes first depends on all of them.
        name: What messages call it.

    Returns:
        Timestamps in microseconds and UTC, without a zone; null where a string has none.

    Raises:
        OptionError: pandas, which parses them, is not installed.

    Example:
        >>> parse_dates(pa.array(["2024-02-29", "no date"]))[0].as_py()
        datetime.datetime(2024, 2, 29, 0, 0)
    """
    pd = _pandas(name)
    words = pd.Series(texts.to_pylist(), dtype="object")
    flexible = pd.to_datetime(words, errors="coerce", utc=True, format="mixed", dayfirst=False)
    words = words.mask(flexible.isna(), pd.NA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no common format was found
        fixed = pd.to_datetime(words, errors="coerce", utc=True, dayfirst=False)  # all by the format of the first
    slashes = words.astype("string").str.contains(_SLASHES, regex=True).any()
    if slashes and fixed.isna().sum() > words.isna().sum():
        other = pd.to_datetime(words, errors="coerce", utc=True, format="mixed", dayfirst=True)
        fixed = other if other.isna().sum() < fixed.isna().sum() else fixed
    dates = fixed.fillna(flexible).dt.tz_localize(None).astype("datetime64[us]")
    return pa.array(dates, pa.timestamp("us"), from_pandas=True)


def _pandas(name: str) -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise OptionError(
            f"column {name!r} holds strings, which pandas parses as numbers or dates. Install pandas, or convert them.",
            column=name,
        ) from None


VERSION = 1


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a table, as `analyze` returns them: `stats["price"]` is a column.

    Example:
        >>> from stoker_recipes.tabular import analyze
        >>> stats = analyze({"x": [1, 2, 7]})
        >>> stats.num_rows, stats["x"].max
        (3, 7)
    """

    format: Literal["stoker-statistics"] = "stoker-statistics"
    version: int = VERSION
    num_rows: int
    limits: Limits
    columns: list[AnyColumn]
    key: str | None = None
    """The column with the key of each row."""
    cnt_lengths: dict[str, int] | None = None
    """Number of keys per number of rows."""

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.name}: {column.type}" for column in self.columns)
        return f"<statistics of {self.num_rows:,} rows; {columns}>"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def __getitem__(self, name: str) -> AnyColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise OptionError(f"there is no column {name!r}; there are {', '.join(self.names[:20])}.")

    def with_lengths(self, key: str, lengths: Any) -> Statistics:
        """A copy with the number of rows per key."""
        distinct, counts = np.unique(lengths, return_counts=True)
        counted = dict(zip(map(str, distinct.tolist()), counts.tolist(), strict=True))
        return msgspec.structs.replace(self, key=key, cnt_lengths=counted)

    def to_json(self) -> bytes:
        """As JSON."""
        whole = msgspec.structs.replace(self, columns=[_without_run(column) for column in self.columns])
        return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file, atomically."""
        disk.write_file(Path(path), self.to_json())


def _without_run(column: AnyColumn) -> AnyColumn:
    return msgspec.structs.replace(column, run=UNSET) if isinstance(column, NumberColumn | DateColumn) else column
