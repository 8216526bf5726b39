"""Analyze: the way from a table to its statistics, in one pass.

Tables in memory are analysed column by column, files chunk by chunk; columns go by on several threads at once. Memory is
bounded by the limits and the number of columns, whatever the number of rows: see docs/encoding/statistics.md.
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

import pyarrow as pa

from stoker.encode.statistics.columns import AnyColumn
from stoker.encode.statistics.gathering import ColumnGatherer
from stoker.encode.statistics.keys import compiled
from stoker.encode.statistics.kinds import Asked, kind_of
from stoker.encode.statistics.limits import CATEGORIES, EXACT, Limits
from stoker.encode.statistics.result import Statistics
from stoker.encode.statistics.subjects import Subjects
from stoker.encode.statistics.tables import settled_schema, sources_of
from stoker.encode.statistics.texts import TYPES, TextForm, dates_of, numbers_of
from stoker.errors import OptionError, SourceChanged, SourceInvalid
from stoker.store.packing.field import plain_type
from stoker.store.packing.options import Options, parse_names, parse_threads
from stoker.store.packing.plan import Plan, make_plan
from stoker.store.packing.readahead import read_ahead
from stoker.store.sources.dialect import Dialect
from stoker.store.sources.memory import TableSource
from stoker.store.sources.source import Place, Unfit

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
    plan = make_plan(sources, Options(columns=names, dialect=dialect or Dialect(), threads=threads))
    try:
        return _of_files(plan, asked, limits, key)
    except Unfit:
        plan = replace(plan, schemas=[settled_schema(plan)] * len(plan.sources))
    try:
        return _of_files(plan, asked, limits, key)
    except Unfit as error:
        raise SourceChanged(f"{error}: its values differ between two looks. Do not change files while they are read.") from None


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
    chunks = [task().table for task in source.read(schema, start=Place(), chunk_bytes=max(source.num_bytes, 1))]
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


def _of_files(plan: Plan, asked: Mapping[str, str], limits: Limits, key: str | None) -> Statistics:
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
            tasks = source.read(plan.schema, start=Place(), chunk_bytes=options.chunk_bytes)
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


def _tables_of(plan: Plan, names: Sequence[str]) -> Iterator[pa.Table]:
    for source in plan.sources:
        for task in source.read(plan.schema, start=Place(), chunk_bytes=plan.options.chunk_bytes):
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
        raise SourceInvalid(f"{where} has {count} columns named {name!r}. Rename them, so that each has a name of its own.")
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
