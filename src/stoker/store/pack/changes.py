"""`rename=`, `where=` and `derive=` of a pack: `ChangedSource` changes rows as they are read, `derive_steps` adds columns to sorted series.

Rows are changed chunk by chunk, on the threads that decode them, so memory and resuming are those of a plain pack. What needs the order of
a series (lag, diff, functions) is computed in one pass over the finished run. A killed pack repeats that pass, so the journal does
not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker.store.expressions import Expression, stored_values, text_array
from stoker.store.formats.base import Chunk, DataSource, InferredTypeError, RowLocation, SizedTask, Task, is_list
from stoker.store.pack.options import (
    PackOptions,
    SeriesFunction,
    checked_result,
    early_names,
    late_inputs,
)
from stoker.store.pack.plan import ColumnPlan, PackPlan, asked_type, late_columns, make_field, plain_type
from stoker.store.pack.sorted_runs import SortedRun
from stoker.store.pack.values import Locate, from_bfloat16, one_array, to_numbers
from stoker.store.shards import ColumnFile, NonFiniteCount, TextFile, from_numpy


def change_sources(sources: Sequence[DataSource], options: PackOptions) -> list[DataSource]:
    """The sources with `rename=`, `where=` and early columns of `derive=` applied."""
    there = {name for source in sources for name in source.schema().names}
    for name in options.rename:
        if name not in there:
            columns = ", ".join(sources[0].schema().names[:20])
            raise OptionError(f"rename= names {name!r}, but {sources[0].label} has the columns {columns}.")
    return [ChangedSource(one, options) for one in sources]


class ChangedSource(DataSource):
    """A source with other names, fewer rows and more columns. Its rows keep the numbers that they have in the source."""

    def __init__(self, source: DataSource, options: PackOptions) -> None:
        self.name, self.path, self.num_bytes = source.name, source.path, source.num_bytes
        self.typed, self.limits = source.typed, source.limits
        self._source = source
        self._options = options
        self._condition = options.condition
        self._plain = source.schema()
        there = self._plain.names
        for name in options.rename:
            if name not in there and not options.wide:
                raise OptionError(f"rename= names {name!r}, but {self.label} has the columns {', '.join(there[:20])}.")
        self._olds = {options.rename.get(name, name): name for name in there}
        """Names in the source, by the new ones."""
        if len(self._olds) < len(there):
            twice = next(
                new for old, new in options.rename.items() if old in there and (new in there) and new not in options.rename
            )
            raise OptionError(f"rename= makes a second column {twice!r} in {self.label}. Rename that one too, or leave it out.")
        renamed = pa.schema([(name, self._asked(name, self._plain.field(old).type)) for name, old in self._olds.items()])
        for name in options.derived:
            if name in self._olds:
                raise OptionError(f"derive= makes {name!r}, but {self.label} has such a column. Choose another name.")
        self._derived = {
            name: what for name in early_names(renamed, options) if isinstance(what := options.derived[name], Expression)
        }
        self._schema = self._derived_schema(renamed)

    def _asked(self, name: str, kind: pa.DataType) -> pa.DataType:
        """The type to request from text where `dtype=` names one."""
        return kind if self.typed else asked_type(kind, self._options.dtypes.get(name))

    def _derived_schema(self, renamed: pa.Schema) -> pa.Schema:
        """The schema with derived columns, whose types are those of no rows; checks the condition too."""
        empty = renamed.empty_table()
        inputs = self._inputs(renamed.names)
        nulls = {name for name in inputs if pa.types.is_null(renamed.field(name).type)}
        scalars = {name: _rows_as_values(name, empty.column(name), str) for name in inputs}
        made = self._evaluate_all(scalars, 0, nulls)
        if self._condition is not None:
            self._condition_of(scalars, 0, nulls)
        fields = [(name, _as_arrow(values, None, name).type) for name, values in made.items()]
        return pa.schema([*zip(renamed.names, renamed.types, strict=True), *fields])

    def _inputs(self, there: Sequence[str], *, derived: Sequence[str] | None = None) -> list[str]:
        """Columns of the source that the condition and these derived columns need."""
        used = set(self._condition.columns if self._condition is not None else ())
        known = set(self._derived)
        for name in reversed(list(self._derived)):
            if derived is None or name in derived or name in used:
                used |= set(self._derived[name].columns)
        found = [name for name in there if name in used]
        if unknown := sorted(used - known - set(there)):
            late = [name for name in unknown if name in self._options.derived]
            why = "which is computed from sorted steps, after rows were filtered" if late else f"but {self.label} has the columns"
            columns = "" if late else f" {', '.join(list(there)[:20])}"
            raise OptionError(f"where= uses {(late or unknown)[0]!r}, {why}{columns}.")
        for name in found:
            if is_list(self._plain.field(self._olds[name]).type):
                raise OptionError(
                    f"where= uses {name!r}, which holds lists in {self.label}; expected columns with one value per row: where= keeps or "
                    "leaves out whole rows."
                )
        return found

    def schema(self) -> pa.Schema:
        """Names and types of all columns, the derived ones last."""
        return self._schema

    @property
    def num_positions(self) -> int | None:  # type: ignore[override]
        """Of the source; a file may have to be opened for it."""
        return self._source.num_positions

    @property
    def num_rows(self) -> int | None:
        """Rows of the source, where it knows them and none is left out."""
        return getattr(self._source, "num_rows", None) if self._condition is None else None

    def find_misfit(self, name: str, kind: pa.DataType) -> Any:
        """The first value that does not fit a type, where the source can find it."""
        find = getattr(self._source, "find_misfit", None)
        return find(self._olds[name], kind) if find is not None and name in self._olds else None

    def borders(self) -> list[int]:
        """Those of the source: rows keep their numbers."""
        return self._source.borders()

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Chunks of the source, changed on the threads that read them; see `DataSource.read`."""
        inner, extra = None, frozenset[str]()
        if schema is not None:
            kinds = {name: schema.field(name).type for name in schema.names if name in self._olds}
            derived = [name for name in schema.names if name in self._derived]
            # With wide=True, columns that only expressions use are not in the plan.
            more = [name for name in self._inputs(list(self._olds), derived=derived) if name not in kinds]
            extra = frozenset(self._olds[name] for name in more)
            kinds |= {name: self._schema.field(name).type for name in more}
            inner = pa.schema([(self._olds[name], kind) for name, kind in kinds.items()])
        tasks = self._source.read(inner, start=start, chunk_bytes=chunk_bytes)
        while True:
            try:
                with _explained(self, extra):
                    task = next(tasks)
            except StopIteration:
                return
            changed = partial(self._change, task, schema, extra)
            yield SizedTask(changed, task.num_bytes) if isinstance(task, SizedTask) else changed

    def _change(self, task: Task, schema: pa.Schema | None, extra: frozenset[str]) -> Chunk:
        """One chunk with names, rows and columns as asked."""
        with _explained(self, extra):
            chunk = task()
        news = {old: new for new, old in self._olds.items()}
        table = chunk.table.rename_columns([news[name] for name in chunk.table.column_names])
        names = list(self._schema.names) if schema is None else schema.names
        wanted = [name for name in names if name in self._derived]
        inputs = self._inputs(table.column_names, derived=wanted)
        for name in inputs if schema is None else ():  # blocks of text, each with the types that were inferred from it
            kind = self._asked(name, table.column(name).type)
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
        nulls = {name for name in inputs if pa.types.is_null(table.column(name).type)}
        values = {name: _rows_as_values(name, table.column(name), partial(_row_of, chunk, self)) for name in inputs}
        rows = None
        if self._condition is not None and schema is not None:  # types must hold all rows: text is converted before it is filtered
            kept = self._condition_of(values, table.num_rows, nulls)
            if not kept.all():
                rows = np.flatnonzero(kept) + chunk.begin.row
                table, values = table.filter(from_numpy(kept)), {name: one[kept] for name, one in values.items()}
        made = self._evaluate_all(values, table.num_rows, nulls, wanted)
        for name, result in made.items():
            kind = None if schema is None or name not in schema.names else schema.field(name).type
            table = table.append_column(name, _as_arrow(result, kind, name))
        return Chunk(table.select(names), chunk.begin, chunk.end, rows)

    def _condition_of(self, values: Mapping[str, Array], num_rows: int, nulls: set[str]) -> Array:
        """Which rows stay."""
        assert self._condition is not None
        used = {name for name in self._condition.columns if name in self._derived}
        known = {**values, **(self._evaluate_all(values, num_rows, nulls, list(used)) if used else {})}
        return _with_nulls(self._condition.evaluate_rows, known, num_rows, nulls)

    def _evaluate_all(
        self, values: Mapping[str, Array], num_rows: int, nulls: set[str], wanted: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """The derived columns that are wanted; those that they are derived from are computed too."""
        needed = set(self._derived if wanted is None else wanted)
        for name in reversed(list(self._derived)):
            if name in needed:
                needed |= set(self._derived[name].columns) & set(self._derived)
        known = dict(values)
        for name, expression in self._derived.items():
            if name in needed:
                known[name] = _with_nulls(expression.evaluate, known, num_rows, nulls)
        return {name: known[name] for name in self._derived if name in needed and (wanted is None or name in wanted)}


class _explained:
    """Names the way out where text that only an expression uses does not fit its inferred type."""

    def __init__(self, source: ChangedSource, extra: frozenset[str]) -> None:
        self._source, self._extra = source, extra

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InferredTypeError) and error.column in self._extra:
            raise BadValueError(
                f"column {error.column!r} of {self._source.label}, which where= or derive= uses, holds values that do not fit the type of "
                f"its first ones. Name its type with dtype={{{error.column!r}: 'float64'}} or 'text'."
            ) from None


def _row_of(chunk: Chunk, source: DataSource, i: int) -> str:
    return f"row {chunk.row(i) + 1:,} of {source.label}"


def _rows_as_values(name: str, column: pa.ChunkedArray, locate: Locate) -> Array:
    """One value per row, as expressions take them: numbers, datetime64, or strings as objects."""
    values = one_array(column)
    if pa.types.is_string(plain_type(values.type)):
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=object)
    try:
        field = make_field(name, values.type, level="step", asked=None, where="the source")
    except SourceInvalidError as error:
        raise OptionError(f"an expression uses {name!r}: {error}") from None
    if values.null_count and field.kind == "number" and field.dtype.kind in "iub":
        field = replace(field, dtype=np.dtype("<f8"))
    return stored_values(to_numbers(values, field, locate), field.kind, field.unit)


def _with_nulls(evaluate: Callable[..., Array], values: Mapping[str, Array], num_rows: int, nulls: set[str]) -> Array:
    """Evaluate; a column without any value may be of numbers or of strings."""
    steps = np.zeros(num_rows, dtype=np.int64)
    try:
        return evaluate(values, steps)
    except OptionError:
        if not nulls:
            raise
        return evaluate({**values, **{name: np.full(num_rows, None, dtype=object) for name in nulls}}, steps)


def _as_arrow(values: Array, kind: pa.DataType | None, name: str) -> pa.Array:
    """Computed values as Arrow, in the type of the plan; NaN is missing where that is an integer."""
    if values.dtype.kind in "OU":
        return pa.array(values.tolist(), pa.string())
    if kind is not None and values.dtype.kind == "f" and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        array = pa.array(values, mask=np.isnan(values))
    else:
        array = pa.array(np.ascontiguousarray(values))
    if kind is None or array.type == kind or pa.types.is_null(kind):
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadValueError(
            f"the derived column {name!r} cannot be {kind} everywhere: {error}. Name its type with dtype=."
        ) from None


# Derived columns of sorted series.

_BLOCK_ROWS = 1 << 17
_PART = 1 << 20  # series handled at a time


@dataclass(frozen=True, kw_only=True)
class DerivedFile:
    """A derived column on disk."""

    field: ColumnPlan
    file: ColumnFile
    tally: NonFiniteCount


def derive_steps(
    run: SortedRun, plan: PackPlan, *, categories: Mapping[str, TextFile], fresh: Callable[[str], Path]
) -> list[DerivedFile]:
    """Compute the columns that need sorted steps, with a bounded part of the run in memory (with a function: at least a series)."""
    late = {field.name: what for field, what in plan.derived}
    columns = late_columns(late, plan.step, plan.options, "the store")  # of the types that steps have in the end
    files = [
        DerivedFile(field=field, file=ColumnFile.create(fresh(f"derived{i}"), field.dtype), tally=NonFiniteCount())
        for i, (field, _) in enumerate(columns)
    ]
    whole = not all(isinstance(what, Expression) for what in late.values())
    used = {field.name for field in plan.step} if whole else late_inputs(late)
    texts = {name: text_array(file.read(0, file.rows).to_pylist()) for name, file in categories.items() if name in used}
    inputs = [(field, file) for field, file in zip(plan.step, run.step, strict=True) if field.name in used]
    for first, counts, begin, start, stop in _blocks(run, _context(late), whole=whole):
        # Rows `begin` to `start` are only there for the lags of those behind them.
        known = {f.name: stored_values(file.read(begin, stop), f.kind, f.unit, texts.get(f.name)) for f, file in inputs}
        ends = np.cumsum(counts) + first
        series = np.searchsorted(ends, np.arange(begin, stop), side="right")
        steps = np.arange(begin, stop) - (ends - counts)[series]
        for one, (field, what) in zip(files, columns, strict=True):
            if isinstance(what, Expression):
                values = checked_result(what, what.evaluate(known, steps))
            else:
                values = _call_each(field.name, what, known, np.flatnonzero(steps == 0), stop - begin)
            known[field.name] = values
            locate = partial(_step_of, series, steps, start - begin)
            stored = to_numbers(pa.array(np.ascontiguousarray(values[start - begin :])), field, locate)
            one.tally.add(from_bfloat16(stored) if field.kind == "bfloat16" else stored, first_step=start)
            one.file.append(np.ascontiguousarray(stored, dtype=field.dtype))
    return files


def _step_of(series: Array, steps: Array, skipped: int, i: int) -> str:
    return f"step {int(steps[skipped + i]) + 1:,} of a series"


def _context(late: Mapping[str, Expression | SeriesFunction]) -> int:
    """Steps before a row that any of the columns depends on, through those that it uses."""
    depth: dict[str, int] = {}
    for name, what in late.items():
        if isinstance(what, Expression):
            depth[name] = what.context + max((depth.get(one, 0) for one in what.columns), default=0)
    return max(depth.values(), default=0)


def _blocks(run: SortedRun, context: int, *, whole: bool) -> Iterator[tuple[int, Array, int, int, int]]:
    """(first row of the part, counts of its series, row to read from, first row, end) of blocks of rows; of whole series if asked."""
    first = 0
    for part in range(0, run.num_series, _PART):
        counts = run.counts.read(part, min(part + _PART, run.num_series))
        ends = first + np.cumsum(counts)
        last, start = int(ends[-1]), first
        while start < last:
            stop = min(start + max(_BLOCK_ROWS, context), last)
            if whole:
                stop = int(ends[max(int(np.searchsorted(ends, stop, side="right")) - 1, 0)])
                stop = stop if stop > start else int(ends[int(np.searchsorted(ends, start, side="right"))])
            yield first, counts, start if whole else max(first, start - context), start, stop
            start = stop
        first = last


def _call_each(name: str, function: SeriesFunction, known: Mapping[str, Array], starts: Array, num_rows: int) -> Array:
    """Call a function with the columns of each series."""
    found = np.empty(num_rows, dtype=np.float64)
    for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
        given = {column: values[start:stop] for column, values in known.items()}
        try:
            values = np.asarray(function(given))
        except Exception as error:
            raise OptionError(f"derive={{{name!r}: …}}: the function raised {type(error).__name__}: {error}") from error
        count = stop - start
        if values.shape != (count,) or values.dtype.kind not in "biuf":
            raise OptionError(
                f"derive={{{name!r}: …}}: the function returned {values.dtype} of shape {values.shape} for a series of {count:,} steps; "
                f"expected one number per step, so shape ({count},)."
            )
        found[start:stop] = values
        if values.dtype.kind in "iu" and (found[start:stop].astype(values.dtype) != values).any():
            raise BadValueError(f"derive={{{name!r}: …}}: the function returned an integer that float64 cannot hold exactly.")
    return found
