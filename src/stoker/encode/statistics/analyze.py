"""Subjects: whose each row is, where a column says so. Then a subject counts once, however many rows it has.

mostlyai-engine calls these keys root keys, and counts by them so that what only a few people have can be told as rare. Values are
brought to their smallest and largest a key, and to different pairs of key and value; what is then gathered is what each kind of
column gathers anyway. Rows of a key may lie anywhere; rows whose key is missing belong to nobody, and count only as rows. Memory
grows with the keys, and with the pairs while values are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter, methodcaller
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.categories import texts_of_floats
from stoker.encode.statistics.columns import (
    MAX_DISCRETE,
    TYPES,
    AnyColumn,
    CategoryColumn,
    DateColumn,
    Keys,
    NumberColumn,
    TextForm,
    compiled,
    dates_of,
    decode_keys,
    numbers_of,
)
from stoker.encode.statistics.kinds import CATEGORIES, EXACT, Asked, Extremes, Kind, Limits, kind_of, value_type, with_counts_by_key
from stoker.encode.statistics.numbers import joined_zeros, keys_of_present, value_texts
from stoker.encode.statistics.quantiles import Run
from stoker.encode.statistics.result import Statistics
from stoker.encode.statistics.tables import ColumnGatherer, settled_schema, sources_of
from stoker.errors import OptionError, SourceChangedError, SourceInvalidError
from stoker.store.formats.base import InferredTypeError, RowLocation
from stoker.store.formats.csv import Dialect
from stoker.store.formats.tables import TableSource
from stoker.store.interop import from_numpy, to_numpy
from stoker.store.pack.options import PackOptions, parse_names, parse_threads
from stoker.store.pack.plan import PackPlan, is_list, make_plan, plain_type
from stoker.store.pack.threads import read_ahead
from stoker.store.pack.values import one_array

_ENOUGH = 1 << 20
"""Rows that wait before they are brought together."""
_ZEROS = np.array([2**63 - 1, 2**63], dtype=np.uint64)  # the keys of -0.0 and 0.0


class Distinct:
    """Rows that are brought together where they agree in some columns, as they go by."""

    def __init__(self, by: Sequence[str], how: Mapping[str, str]) -> None:
        self._by, self._how = list(by), dict(how)
        self._parts: list[pa.Table] = []
        self._num_waiting = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows; the columns that are no keys have the names of what becomes of them."""
        self._parts.append(self._together(table))
        self._num_waiting += self._parts[-1].num_rows
        if self._num_waiting >= max(_ENOUGH, self._parts[0].num_rows):
            self._combine()

    @property
    def num_rows(self) -> int:
        """Rows that are kept; some of them may still agree."""
        return sum(part.num_rows for part in self._parts)

    def table(self) -> pa.Table | None:
        """All rows, brought together; None where there were none."""
        self._combine()
        return self._parts[0].combine_chunks() if self._parts else None

    def column(self, name: str) -> pa.Array:
        """A column of all rows, brought together; a null array where there were none."""
        table = self.table()
        return pa.nulls(0) if table is None else one_array(table.column(name))

    def _combine(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._together(pa.concat_tables(self._parts))]
        self._num_waiting = 0

    def _together(self, table: pa.Table) -> pa.Table:
        grouped = table.group_by(self._by, use_threads=False).aggregate(list(self._how.items()))
        return grouped.rename_columns([*self._by, *self._how]).select(table.column_names)


class Subjects:
    """Takes in the rows of a table with their keys."""

    def __init__(self, key: str, schema: pa.Schema, kinds: Mapping[str, Kind], limits: Limits) -> None:
        for name in kinds:
            if is_list(schema.field(name).type):
                raise OptionError(f"column {name!r} holds lists, which cannot be counted by key. Leave it out with `columns`.")
        self.key = key
        self._kinds, self._limits = dict(kinds), limits
        self._types = {name: value_type(schema.field(name).type) for name in kinds}
        self._lengths = Distinct(["key"], {"rows": "sum"})
        self._ranges = {n: Distinct(["key"], {"least": "min", "most": "max"}) for n, k in kinds.items() if k in ("number", "date")}
        self._pairs = {n: Distinct(["key", "value"], {}) for n, kind in kinds.items() if kind in ("number", "category")}
        self._values: dict[str, Keys] = {}

    def add(self, table: pa.Table) -> None:
        """Take in rows."""
        keys = _keys(table.column(self.key))
        known = keys.drop_null()
        self._lengths.add(pa.table({"key": known, "rows": from_numpy(np.ones(len(known), dtype=np.int64))}))
        for name, kind in self._kinds.items():
            values = _plain(table.column(name))
            if kind == "number" and not pa.types.is_null(values.type):
                self._add_numbers(name, keys, values)
            elif kind == "category" and not pa.types.is_null(values.type):
                values = _grouped_type(texts_of_floats(values)) if pa.types.is_floating(values.type) else values
                present = pc.is_valid(values)
                self._pairs[name].add(pa.table({"key": keys.filter(present), "value": values.filter(present)}))
            elif kind == "date":
                present = pc.and_(pc.is_valid(values), pc.is_valid(keys))
                values = values.filter(present)
                self._ranges[name].add(pa.table({"key": keys.filter(present), "least": values, "most": values}))

    def _add_numbers(self, name: str, keys: pa.Array, values: pa.Array) -> None:
        """Numbers as ordered keys: so -0.0 is below 0.0, and each of them stays what it is."""
        numbers, present = keys_of_present(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
        keys, words = keys.filter(from_numpy(present)), from_numpy(numbers)
        known = pc.is_valid(keys)
        least = words.filter(known)
        self._ranges[name].add(pa.table({"key": keys.filter(known), "least": least, "most": least}))
        if name in self._pairs:
            self._pairs[name].add(pa.table({"key": keys, "value": words}))
            if self._are_many(name, words) and self._pairs[name].num_rows > self._limits.exact:
                del self._pairs[name]  # so many values are not counted one by one

    def _are_many(self, name: str, words: pa.Array) -> bool:
        """Whether a column has had too many different values to be always counted one by one."""
        before = self._values.get(name, np.empty(0, dtype=np.uint64))
        if len(before) <= MAX_DISCRETE:  # one more, as two zeros are one value
            self._values[name] = before = np.union1d(before, to_numpy(pc.unique(words)))[: MAX_DISCRETE + 1]
        return len(before) > MAX_DISCRETE

    def lengths(self) -> npt.NDArray[np.int64]:
        """How many rows each key has."""
        rows = self._lengths.column("rows")
        return to_numpy(rows) if len(rows) else np.empty(0, dtype=np.int64)

    def counted(self, column: AnyColumn) -> AnyColumn:
        """What is known of a column, with each key counted once."""
        known: dict[str, Any] = {"num_keys": len(self._lengths.column("key"))}
        if isinstance(column, NumberColumn):
            known |= self._counted_numbers(column)
        elif isinstance(column, DateColumn):
            ranges = self._ranges[column.name]
            least: Any = self._gathered(column.name, ranges.column("least"))
            most: Any = self._gathered(column.name, ranges.column("most"))
            known |= {"min_n": least.min_n, "max_n": most.max_n}
        elif isinstance(column, CategoryColumn):
            known |= self._counted_texts(column.name)
        return msgspec.structs.replace(column, **known)

    def _counted_numbers(self, column: NumberColumn) -> dict[str, Any]:
        form, ranges = column.form, self._ranges[column.name]
        ends = []
        for name in ("least", "most"):
            found = ranges.column(name)
            ends.append(Extremes.of(Run.of(to_numpy(found).copy() if len(found) else np.empty(0, dtype=np.uint64))))
        known: dict[str, Any] = {
            "min_n": decode_keys(ends[0].smallest, form).astype(np.float64).tolist(),
            "max_n": decode_keys(ends[1].largest[::-1], form).astype(np.float64).tolist(),
            "cnt_values": None,
        }
        if column.name in self._pairs and column.state is not None and not column.rank_error:
            run = self._keys_by_value(column)
            known["state"] = with_counts_by_key(column.state, run.counts)
            if column.cnt_values is not None:
                known["cnt_values"] = value_texts(joined_zeros(run, form), form)
        return known

    def _counted_texts(self, name: str) -> dict[str, Any]:
        table = self._pairs[name].table()
        every: Any = self._gathered(name, pa.nulls(0) if table is None else one_array(table.column("value")))
        owned: Any = self._gathered(name, pa.nulls(0) if table is None else _of_known(table, "value"))
        error = max(every.count_error, owned.count_error)
        counts = owned.cnt_values if error else {text: owned.cnt_values.get(text, 0) for text in every.cnt_values}
        return {"cnt_values": counts, "num_distinct": None if error else len(counts), "count_error": error}

    def _keys_by_value(self, column: NumberColumn) -> Run:
        """All values, with how many keys have each; where both zeros occur, a key that has one of them is counted at 0.0."""
        values = np.frombuffer(column.state.keys if column.state is not None else b"", dtype="<u8").astype(np.uint64)
        counts = np.zeros(len(values), dtype=np.int64)
        table = self._pairs[column.name].table()
        if table is not None and table.num_rows:
            owned = to_numpy(_of_known(table, "value"))
            np.add.at(counts, np.searchsorted(values, owned), 1)
            if column.form == "float" and np.isin(_ZEROS, values).all():
                zeros = table.filter(pc.is_in(table.column("value"), value_set=from_numpy(_ZEROS)))
                counts[np.searchsorted(values, _ZEROS)] = 0, pc.count_distinct(zeros.column("key"), mode="only_valid").as_py()
        return Run(values, counts)

    def _gathered(self, name: str, values: pa.Array) -> AnyColumn:
        gatherer = ColumnGatherer(name, self._kinds[name], self._types[name], self._limits)
        gatherer.add(values)
        return gatherer.column()


def _of_known(table: pa.Table, name: str) -> pa.Array:
    """A column of the rows that have a key."""
    return one_array(table.filter(pc.is_valid(table.column("key"))).column(name))


def _keys(column: pa.ChunkedArray) -> pa.Array:
    """One array of a type that Arrow can group by; the two zeros are one key, and NaN is a missing one."""
    keys = _plain(column)
    if not pa.types.is_floating(keys.type):
        return keys
    keys = pc.add(keys.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(keys), pa.scalar(None, pa.float64()), keys)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """One array without ways of storing its values."""
    values = one_array(column)
    return _grouped_type(values.storage if isinstance(values, pa.ExtensionArray) else values)


def _grouped_type(values: pa.Array) -> pa.Array:
    """A type that Arrow can group by."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


# Analyze: the way from a table to its statistics, in one pass.
#
# Tables in memory are analysed column by column, files chunk by chunk; columns go by on several threads at once. Memory is
# bounded by the limits and the number of columns, whatever the number of rows: see docs/encoding/statistics.md.

Reader = tuple[pa.DataType, Callable[[Any], Any]]
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
    dialect: Dialect | None = None,
    threads: int | None = None,
) -> Statistics:
    """Find types, missing values, quantiles, digit ranges, categories and date parts of all columns (or of `columns`).

    `source` is a table in memory (pandas, polars, Arrow, NumPy, a mapping of columns, a store), a path, a pattern, or a list of
    paths. `kinds` takes columns for what their type does not say: numbers or truth values for a `category` or `number`, strings for
    a `number`, and those of a table in memory for a `date`, as mostlyai-engine reads them.
    Quantiles are exact for columns with at most `exact` different values, counts of texts for at most `categories`; beyond,
    the result states its error. `key` is a column that says whose each row is: then keys are counted by their number of rows, and
    counts and extremes of the other columns take each key once. `dialect` is for tables in text.
    """
    limits = Limits(exact=exact, categories=categories)
    limits.check()
    threads = parse_threads(threads)
    sources = sources_of(source, dialect or Dialect())
    names, asked = parse_names(columns), dict(kinds or {})
    if names is not None and not names:
        raise OptionError("columns names no column. Name some, or leave it out.")
    if names is not None and key is not None and key not in names:
        names = (*names, key)
    if len(sources) == 1 and isinstance(sources[0], TableSource):
        return _of_table(sources[0], names, asked, limits, threads, key)
    plan = make_plan(sources, PackOptions(columns=names, dialect=dialect or Dialect(), threads=threads))
    try:
        return _of_files(plan, asked, limits, key)
    except InferredTypeError:
        plan = replace(plan, schemas=[settled_schema(plan)] * len(plan.sources))
    try:
        return _of_files(plan, asked, limits, key)
    except InferredTypeError as error:
        raise SourceChangedError(
            f"{error}: its values differ between two looks. Do not change files while they are read."
        ) from None


def _of_table(
    source: TableSource, names: Sequence[str] | None, asked: Mapping[str, str], limits: Limits, threads: int, key: str | None
) -> Statistics:
    """Column by column, so that only those at work take memory."""
    whole = source.schema()
    for name in names or ():
        if name not in whole.names:
            raise OptionError(f"columns names {name!r}, but {source.label} has the columns {', '.join(whole.names[:20])}.")
    schema = whole if names is None else pa.schema([whole.field(name) for name in names])
    _check_names(schema, asked, source.label, key)
    chunks = [task().table for task in source.read(schema, start=RowLocation(), chunk_bytes=max(source.num_bytes, 1))]
    read = _readers(schema, asked, lambda names: iter(chunks), where=source.label)
    if "date" in [asked.get(name) for name in read]:
        chunks = [pa.concat_tables(chunks)] if chunks else []  # what a date means depends on the whole column
    schema, chunks = _read_schema(schema, read), [_read_texts(chunk, read) for chunk in chunks]
    gatherers, subjects = _gatherers(schema, asked, limits, source.label, key)
    compiled(sum(chunk.num_rows for chunk in chunks) * len(schema))

    def gather(number: int) -> AnyColumn:
        gatherer = gatherers.pop(number)  # what it holds is given back with it
        for chunk in chunks:
            gatherer.add(chunk.column(gatherer.name))
        return gatherer.column()

    with _threads(min(threads, len(gatherers))) as spread:
        columns = spread(gather, list(gatherers))
    if subjects is not None:
        for chunk in chunks:
            subjects.add(chunk)
    return _result(sum(chunk.num_rows for chunk in chunks), limits, columns, subjects)


def _of_files(plan: PackPlan, asked: Mapping[str, str], limits: Limits, key: str | None) -> Statistics:
    """Chunk by chunk: while the columns of one go by, the next ones are read."""
    options = plan.options
    where = plan.sources[0].label
    _check_names(plan.schema, asked, where, key)
    read = _readers(plan.schema, asked, partial(_tables_of, plan), where=where, files=True)
    found, subjects = _gatherers(_read_schema(plan.schema, read), asked, limits, where, key)
    gatherers = list(found.values())
    num_rows = 0
    with _threads(min(options.threads, len(gatherers))) as spread, ThreadPoolExecutor(options.num_readers) as readers:
        for source in plan.sources:
            tasks = source.read(plan.schema, start=RowLocation(), chunk_bytes=options.chunk_bytes)
            ahead = read_ahead(tasks, readers, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
            with closing(ahead) as chunks:
                for chunk in chunks:
                    table = _read_texts(chunk.table, read)
                    compiled((num_rows + table.num_rows) * len(gatherers))
                    spread(lambda gatherer, table=table: gatherer.add(table.column(gatherer.name)), gatherers)  # type: ignore[misc]
                    if subjects is not None:
                        subjects.add(table)
                    num_rows += table.num_rows
        columns = spread(ColumnGatherer.column, gatherers)
    return _result(num_rows, limits, columns, subjects)


def _tables_of(plan: PackPlan, names: Sequence[str]) -> Iterator[pa.Table]:
    for source in plan.sources:
        for task in source.read(plan.schema, start=RowLocation(), chunk_bytes=plan.options.chunk_bytes):
            yield task().table.select(names)


def _readers(
    schema: pa.Schema,
    asked: Mapping[str, str],
    tables: Callable[[Sequence[str]], Iterator[pa.Table]],
    *,
    where: str,
    files: bool = False,
) -> dict[str, Reader]:
    """For columns that are taken for what their type is not: their new type, and how they come to it."""
    readers: dict[str, Reader] = {}
    forms: dict[str, TextForm] = {}
    for name, kind in asked.items():
        value = plain_type(schema.field(name).type)
        if pa.types.is_null(value) and kind in ("number", "date"):
            empty = pa.float64() if kind == "number" else pa.timestamp("us")
            readers[name] = empty, methodcaller("cast", empty)
        elif pa.types.is_string(value) and kind == "number":
            forms[name] = TextForm()
        elif pa.types.is_string(value) and kind == "date":
            if files:
                raise OptionError(
                    f"kinds takes column {name!r} of {where} for a date, but it holds strings, whose dates depend on the whole "
                    "column. Read the files into a table (with pandas, say), and analyse that."
                )
            readers[name] = pa.timestamp("us"), partial(dates_of, name=name)
    for table in tables(list(forms)) if forms else ():
        for name, form in forms.items():
            form.add(table.column(name))
    for name, form in forms.items():
        readers[name] = TYPES[form.form], partial(numbers_of, form=form.form)
    return readers


def _read_schema(schema: pa.Schema, readers: Mapping[str, Reader]) -> pa.Schema:
    return pa.schema([pa.field(field.name, readers[field.name][0]) if field.name in readers else field for field in schema])


def _read_texts(table: pa.Table, readers: Mapping[str, Reader]) -> pa.Table:
    for name, (kind, read) in readers.items():
        values = read(table.column(name))
        table = table.set_column(table.schema.get_field_index(name), pa.field(name, kind), values)
    return table


def _result(num_rows: int, limits: Limits, columns: list[AnyColumn], subjects: Subjects | None) -> Statistics:
    counted = columns if subjects is None else [subjects.counted(column) for column in columns]
    statistics = Statistics(num_rows=num_rows, limits=limits, columns=counted)
    return statistics if subjects is None else statistics.with_lengths(subjects.key, subjects.lengths())


def _gatherers(
    schema: pa.Schema, asked: Mapping[str, str], limits: Limits, where: str, key: str | None
) -> tuple[dict[int, ColumnGatherer], Subjects | None]:
    """What takes in each column, by its number, and what counts by key."""
    kinds = {field.name: kind_of(field.name, field.type, asked.get(field.name), where) for field in schema if field.name != key}
    gatherers = {
        number: ColumnGatherer(field.name, kinds[field.name], field.type, limits)
        for number, field in enumerate(schema)
        if field.name != key
    }
    return gatherers, None if key is None else Subjects(key, schema, kinds, limits)


def _check_names(schema: pa.Schema, asked: Mapping[str, str], where: str, key: str | None) -> None:
    """Every name that is used is that of one column."""
    name, count = max(Counter(schema.names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise SourceInvalidError(f"{where} has {count} columns named {name!r}. Rename them, so that each has a name of its own.")
    unknown = next((name for name in asked if name not in schema.names), None)
    if unknown is not None:
        raise OptionError(f"kinds names {unknown!r}, but {where} has the columns {', '.join(schema.names[:20])}.")
    if key is not None and key not in schema.names:
        raise OptionError(f"key is {key!r}, but {where} has the columns {', '.join(schema.names[:20])}.")


@contextmanager
def _threads(count: int) -> Iterator[Callable[[Callable[[T], R], Sequence[T]], list[R]]]:
    """A way to do something for each of several things, on so many threads; errors are those of the first of them."""
    if count <= 1:
        yield lambda work, things: [work(thing) for thing in things]
        return
    with ThreadPoolExecutor(count, thread_name_prefix="stoker-statistics") as pool:
        yield lambda work, things: list(pool.map(work, things))
