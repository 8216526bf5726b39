"""Columns that follow exactly from others in every row of the training data: they are computed, not learned.

    copy        another column of the row                    constant    the value of the subject's first event
    sum         two other numbers of the row                 previous    another column of the event before
    product     two other numbers of the row, rounded        running     a column of the event before, plus a number of this event

What depends on the event before has a first value, which is learned. A rule must hold in every row, missing values included, and not by
chance: of one row per subject, the values of the column are put in all orders, and fewer than one in e**20 of these orders (and of the
rules that are tried) may fit as well. Tables without such rules are learned as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from stoker.extend import Array
from stoker_recipes.tabular.dates import Datetime
from stoker_recipes.tabular.encodings import Categorical, Character, Encoding, LatLong, Moment, Numeric, decimals_of
from stoker_recipes.tabular.rhythm import later_rows
from stoker_recipes.tabular.values import Values, family_of, read_values, to_column

Operation = Literal["copy", "constant", "sum", "product", "previous", "running"]
First = Categorical | Character | LatLong | Numeric | Datetime
IN_ROW: tuple[Operation, ...] = ("copy", "sum", "product")
"""What follows from the same row alone."""
LEAST_SURPRISE = 20.0
"""The logarithm of how many times as many orders must not fit as do."""
FEW_SUBJECTS = 20
"""With fewer subjects every row counts, as if rows of a subject were independent."""
SCREENED = 64
"""Rows that all pairs of columns are compared on, before those that fit are compared on all rows."""
MOST_EXACT = 2.0**52


class Formula(Struct, frozen=True, kw_only=True):
    """How a column follows from others."""

    operation: Operation
    operands: list[str]
    """Of `previous` and `running`, the first one is that of the event before."""
    decimals: int | None = None
    """What numbers are rounded to."""

    @property
    def in_row(self) -> list[str]:
        """The columns of the same row that it needs."""
        return self.operands if self.operation in IN_ROW else self.operands[1:]


class Computed(Encoding, frozen=True, kw_only=True, tag="computed"):
    """A column that is computed; `first` says what first events have, where it depends on the event before."""

    formula: Formula
    first: First | None = None

    @property
    def has_null(self) -> bool:
        """Whether missing values are drawn; computed ones are missing where those are that they follow from."""
        return self.first is not None and self.first.has_null

    @property
    def null_class(self) -> int:  # type: ignore[override]
        """The class of the first sub-column for a missing value, where there are some."""
        return 0 if self.first is None else self.first.null_class

    @property
    def inner(self) -> dict[str, Encoding]:
        """The encodings that it is made of, by the begin of the names of their sub-columns."""
        return {} if self.first is None else {"first_": self.first}

    def moments(self) -> dict[str, Moment]:
        """Only first events are learned."""
        return dict.fromkeys(self.sizes, "first")

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of first events, (rows, sub-columns)."""
        codes = np.zeros((len(values), len(self.sizes)), np.int64)
        if self.first is not None:
            firsts = starts[np.diff(np.append(starts, len(values))) > 0]
            first_values = Values(family=values.family, data=values.data[firsts], valid=values.valid[firsts], words=values.words)
            codes[firsts] = self.first.encode(first_values, np.arange(len(firsts)))
        return codes

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of first events, at all rows; `compute` fills the others."""
        if self.first is None:
            return pa.nulls(len(codes), kind)
        return self.first.decode(codes, kind, starts, uniform)


def surprise(values: Array) -> float:
    """The logarithm of the number of orders of values that differ."""
    _, counts = np.unique(values, return_counts=True)
    return math.lgamma(len(values) + 1) - sum(math.lgamma(count + 1) for count in counts.tolist())


def _numbers(values: Values, rows: Array | slice = slice(None)) -> Array:
    """Numbers as float64, NaN where they are missing."""
    return np.where(values.valid[rows], values.data[rows], np.nan).astype(np.float64)


def _places(values: Values) -> int | None:
    return 0 if values.data.dtype.kind != "f" else decimals_of(np.sort(values.data[values.valid]))


def _fits(made: Array, wanted: Array, places: int | None) -> Array:
    """Whether numbers are the wanted ones. Half of the last place may be between them: halves are rounded in several ways."""
    room = 1e-9 * np.abs(wanted) + (0.0 if places is None else 0.5 * 10.0**-places + 1e-12)
    with np.errstate(invalid="ignore"):
        return np.asarray((np.abs(made - wanted) <= room) | (np.isnan(made) & np.isnan(wanted)))


class _Search:
    """The rules of a table. Candidates are those that fit a few rows; they are then compared with all."""

    def __init__(self, table: pa.Table, starts: Array, *, is_sequence: bool) -> None:
        self.table, self.rules = table, dict[str, Formula]()
        lengths = np.diff(np.append(starts, len(table)))
        self.later = later_rows(len(table), starts) if is_sequence else np.zeros(0, np.int64)
        middles = starts + np.minimum(np.maximum(lengths // 2, 1), lengths - 1)
        few = len(starts) < FEW_SUBJECTS
        self._shown = {True: np.arange(len(table)) if few else middles, False: self.later if few else middles[lengths > 1]}
        rows = self.later if len(self.later) else np.arange(len(table))
        screened = max(4, min(SCREENED, 2**18 // max(1, table.num_columns) ** 2))
        rows = rows[:: max(1, len(rows) // screened)]
        now, before = table.take(pa.array(rows)), table.take(pa.array(np.maximum(rows - 1, 0)))
        self.now = {name: read_values(name, now[name]) for name in table.column_names}
        self.before = {name: read_values(name, before[name]) for name in table.column_names}
        self.numbers = [
            field.name
            for field in table.schema
            if (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)) and self.now[field.name].valid.any()
        ]
        self._matrix = np.stack([_numbers(self.now[name]) for name in self.numbers]) if self.numbers else np.zeros((0, len(rows)))
        self._matrix_before = np.stack([_numbers(self.before[name]) for name in self.numbers]) if self.numbers else self._matrix
        self._least = LEAST_SURPRISE + math.log(max(1, len(self.numbers)) ** 3 + table.num_columns**2)
        self._read: dict[str, Values] = {}

    def values(self, name: str) -> Values:
        """All values of a column."""
        if name not in self._read:
            self._read[name] = read_values(name, self.table[name])
        return self._read[name]

    def _needs(self, name: str, target: str) -> bool:
        """Whether a column follows from the target in the same row."""
        return name == target or (name in self.rules and any(self._needs(operand, target) for operand in self.rules[name].in_row))

    def _accept(self, name: str, rule: Formula) -> bool:
        """Whether a rule that fits the sample holds in all rows, and not by chance."""
        if any(self._needs(operand, name) for operand in rule.in_row):
            return False
        in_row, target = rule.operation in IN_ROW, self.values(name)
        shown = self._shown[in_row]
        if surprise(np.where(target.valid, target.data, target.data.max(initial=0) + 1)[shown]) < self._least:
            return False
        if rule.operation in ("copy", "constant"):
            rows = slice(None) if in_row else self.later
            holds = _equal(_take(target, rows), _take(self.values(rule.operands[0]), rows if in_row else self.later - 1))
        else:
            rows, places = slice(None) if in_row else self.later, _places(target)
            operands = [self.values(operand) for operand in rule.operands]
            if any((np.abs(values.data.astype(np.float64)) >= MOST_EXACT).any() for values in [target, *operands]):
                return False
            several = [
                _numbers(operands[0], rows if in_row else self.later - 1),
                *(_numbers(values, rows) for values in operands[1:]),
            ]
            holds = bool(_fits(_join(rule, several), _numbers(target, rows), places).all())
            rule = structs.replace(rule, decimals=places if len(several) > 1 else None)
        if holds:
            self.rules[name] = rule
        return holds

    def search(self, name: str) -> None:
        """Find the rule of a column, if there is one."""
        any(self._accept(name, rule) for rule in self._candidates(name))

    def _candidates(self, name: str) -> Iterator[Formula]:
        """Rules that fit the sample."""
        target, kinds = self.now[name], {field.name: field.type for field in self.table.schema}
        for other in self.table.column_names:
            if other != name and kinds[other] == kinds[name] and _equal(target, self.now[other]):
                yield Formula(operation="copy", operands=[other])
        if len(self.later) and _equal(target, self.before[name]):
            yield Formula(operation="constant", operands=[name])
        if name not in self.numbers:
            return
        place, wanted, places = self.numbers.index(name), _numbers(target), _places(target)
        others = [number for number in range(len(self.numbers)) if number != place]
        if len(self.later):
            for number in others:
                if _fits(self._matrix_before[number], wanted, places).all():
                    yield Formula(operation="previous", operands=[self.numbers[number]])
        varied = np.array([len(np.unique(row[~np.isnan(row)])) > 1 for row in self._matrix])
        several: list[tuple[Operation, Array, Any]] = [("sum", self._matrix, np.add), ("product", self._matrix, np.multiply)]
        if len(self.later):
            several.append(("running", self._matrix_before, np.add))
        for operation, left, join in several:
            with np.errstate(over="ignore"):  # a product of large numbers is infinite, and fits nothing
                made = join(left[:, None], self._matrix[None, :])
            fitting = _fits(made, wanted, places).all(-1) & varied[:, None] & varied[None, :]
            for first, second in np.argwhere(fitting).tolist():
                if second != place and (operation == "running" or (first < second and first != place)):
                    yield Formula(operation=operation, operands=[self.numbers[first], self.numbers[second]])


def find_rules(table: pa.Table, starts: Array, names: Sequence[str], *, is_sequence: bool) -> dict[str, Formula]:
    """Find the columns, among these names, that follow from others; of two columns the later one follows from the earlier one.

    Args:
        table: Rows of subjects side by side.
        starts: The first row of each subject that has rows.
        names: Columns that may be computed.
        is_sequence: Whether rows of a subject are events, in order.
    """
    search = _Search(table, starts, is_sequence=is_sequence)
    for name in reversed(names):
        search.search(name)
    return search.rules


def _join(rule: Formula, operands: Sequence[Array]) -> Array:
    """What follows from operands."""
    if len(operands) == 1:
        return operands[0]
    with np.errstate(over="ignore"):
        made = operands[0] * operands[1] if rule.operation == "product" else operands[0] + operands[1]
    return made if rule.decimals is None else np.round(made, rule.decimals)


def _take(values: Values, rows: Array | slice) -> Values:
    return Values(family=values.family, data=values.data[rows], valid=values.valid[rows], words=values.words)


def _equal(left: Values, right: Values) -> bool:
    """Whether values are equal, and missing in the same rows."""
    if not np.array_equal(left.valid, right.valid):
        return False
    if left.words is None or left.words is right.words or left.words.equals(right.words):
        return bool((left.data == right.data)[left.valid].all())
    place = {word: number for number, word in enumerate(left.words.to_pylist())}
    codes = np.array([place.get(word, -1) for word in right.words.to_pylist()] + [-1])
    return bool((left.data == codes[right.data])[left.valid].all())


def compute(
    columns: Mapping[str, pa.Array], rules: Mapping[str, Formula], schema: pa.Schema, starts: Array,
    fixed: Mapping[str, Array] | None = None,
) -> dict[str, pa.Array]:  # fmt: skip
    """Compute columns from others.

    Args:
        columns: All columns; of those that depend on the event before, the first value of each subject counts.
        rules: How columns follow from others.
        schema: Their types.
        starts: The first row of each subject.
        fixed: Rows whose values stay, by column.
    """
    computed = dict(columns)
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in rules and name not in ordered:
            for operand in rules[name].in_row:
                visit(operand)
            ordered.append(name)

    for name in rules:
        visit(name)
    num_rows = len(next(iter(computed.values())))
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, num_rows)))
    arithmetic = [name for name in ordered if rules[name].operation not in ("copy", "constant")]
    stays = {name: np.zeros(num_rows, bool) if fixed is None else fixed[name] for name in ordered}
    for name in ordered:
        if rules[name].operation == "constant":
            computed[name] = _replace(computed[name], computed[name], starts[owner], stays[name])
    if arithmetic:
        _calculate(computed, [name for name in ordered if rules[name].operation != "constant"], rules, schema, starts, stays)
    for name in ordered:
        if rules[name].operation == "copy":
            computed[name] = _replace(computed[name], computed[rules[name].operands[0]], np.arange(num_rows), stays[name])
    return computed


def _replace(column: pa.Array, source: pa.Array, rows: Array, stays: Array) -> pa.Array:
    """The rows of a source, but for those that stay."""
    both = pa.chunked_array([*_chunks(source), *_chunks(column)])
    return both.take(pa.array(np.where(stays, len(source) + np.arange(len(column)), rows))).combine_chunks()


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _calculate(
    columns: dict[str, pa.Array], ordered: Sequence[str], rules: Mapping[str, Formula], schema: pa.Schema, starts: Array,
    stays: Mapping[str, Array],
) -> None:  # fmt: skip
    """Compute numbers, in place: one event after the other where they depend on the event before."""
    kinds = {name: schema.field(name).type for name in columns}
    numbers = [name for name in ordered if family_of(kinds[name]) == "number"]
    values = {
        name: read_values(name, columns[name])
        for name in {*numbers, *(operand for name in numbers for operand in rules[name].operands)}
    }
    data = {name: np.where(column.valid, column.data, np.nan).astype(np.float64) for name, column in values.items()}
    whole = np.arange(len(next(iter(data.values()))))
    lengths = np.diff(np.append(starts, len(whole)))
    depends = any(rules[name].operation in ("previous", "running") for name in numbers)
    steps = [starts[lengths > step] + step for step in range(int(lengths.max(initial=0)))] if depends else [whole]
    for number, rows in enumerate(steps):
        for name in numbers:
            rule = rules[name]
            if rule.operation in ("previous", "running") and not number:
                continue
            before = rows if rule.operation in IN_ROW else rows - 1
            made = _join(rule, [data[rule.operands[0]][before], *(data[operand][rows] for operand in rule.operands[1:])])
            data[name][rows] = np.where(stays[name][rows], data[name][rows], made)
    for name in numbers:
        valid = ~np.isnan(data[name])
        columns[name] = to_column(np.where(valid, data[name], 0.0), valid, kinds[name])
