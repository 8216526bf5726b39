"""`find_series` is `Store.where`: the series for which a condition over their facts is true, such as `country == 'DE' and num_steps > 9`.

Conditions have Python's syntax and a small, safe set of operations: comparisons, `and`, `or`, `not`, `in`, and arithmetic over columns with
one value per series. Names that are not identifiers are written in backticks. What is missing equals `None` alone, and fits no other
comparison but `!=`. A string next to a time is a time in UTC.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.shards import Column

LENGTH = "num_steps"
MAX_LETTERS = 2000
_PART = 1 << 18  # series handled at a time: their strings are Python objects

_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def find_series(condition: str, *, schema: Mapping[str, Column], values: Mapping[str, Array], offsets: Array, name: str) -> Array:
    """The numbers of the series that fulfil a condition, rising. `name` is that of the store, for messages."""
    tree, names = _parse(condition)
    _check_columns(condition, list(names.values()), schema, name)
    columns = [schema[used] for used in names.values() if used in schema]
    categories = {
        column.name: np.array([*column.texts, None], dtype=object)
        for column in columns
        if column.kind == "category" and column.texts is not None
    }
    chosen = []
    for start in range(0, max(len(offsets) - 1, 1), _PART):
        stop = min(start + _PART, len(offsets) - 1)
        known = {column.name: _read(column, values, start, stop, categories.get(column.name)) for column in columns}
        known.setdefault(LENGTH, np.diff(offsets[start : stop + 1]))
        is_true = _Evaluation(condition, {alias: known[used] for alias, used in names.items()}).condition(tree)
        chosen.append(np.flatnonzero(np.broadcast_to(is_true, stop - start)) + start)
    return np.concatenate(chosen)


def _parse(condition: str) -> tuple[ast.expr, dict[str, str]]:
    """The syntax tree, and the columns by the names that stand for them in it."""
    if not isinstance(condition, str) or not condition.strip() or len(condition) > MAX_LETTERS:
        raise OptionError.expected("where", str(condition)[:200], f"a condition of 1 to {MAX_LETTERS:,} characters")
    quoted: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        return quoted.setdefault(match[1], f"_column{len(quoted)}_")

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", replace, condition.strip()), mode="eval").body
        used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise OptionError(
            f'where is {condition[:200]!r}: it is not a valid condition, like "num_steps > 9".', parameter="where"
        ) from None
    columns = {alias: column for column, alias in quoted.items()}
    return tree, {name: columns.get(name, name) for name in used}


def _check_columns(condition: str, names: list[str], schema: Mapping[str, Column], store: str) -> None:
    """Refuse columns that do not have one value per series."""
    per_series = [one for one, column in schema.items() if column.level == "series"]
    for used in names:
        if used == LENGTH and used not in schema:
            continue
        if used not in per_series:
            has = f"has one value per step in {store}" if used in schema else f"{store} does not have"
            raise OptionError(
                f"where is {condition!r} and uses {used!r}, which {has}; series are chosen by columns with one value per series: "
                f"{', '.join([*per_series, LENGTH])}. To leave out rows, pack with sql=.",
                parameter="where",
            )
        if schema[used].width is not None:
            raise OptionError(
                f"where uses {used!r}, which has {schema[used].width} values per series; expected one.", parameter="where"
            )


def _read(column: Column, values: Mapping[str, Array], start: int, stop: int, categories: Array | None) -> Array:
    """One value per series: numbers, datetime64, or strings as objects."""
    if column.kind == "text" and column.texts is not None:
        texts = np.empty(stop - start, dtype=object)
        texts[:] = column.texts[start:stop]
        return texts
    stored = values[column.name][start:stop]
    if column.kind == "category" and categories is not None:
        return np.asarray(categories[stored])  # the code -1 is the last entry, which is None
    if column.kind == "bfloat16":
        return (stored.astype("<u4") << np.uint32(16)).view("<f4")
    if column.kind in ("timestamp", "duration"):
        return stored.view(f"{'M' if column.kind == 'timestamp' else 'm'}8[{(column.unit or 'ns').partition(',')[0]}]")
    return stored


class _Evaluation:
    """The value of a condition over some series."""

    def __init__(self, text: str, columns: Mapping[str, Array]) -> None:
        self._text, self._columns = text, columns

    def condition(self, node: ast.expr) -> Array:
        """Whether a part of the condition is true, for each series."""
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(self._value(node))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # NumPy names its loops and casting rules, which say nothing about columns.
            reason = (
                "an operation gets types that it does not take, such as a string next to a number"
                if "ufunc" in str(error)
                else error
            )
            self._refuse(f"cannot be computed: {reason}")
        if found.dtype != np.bool_:
            self._refuse(f"uses {ast.unparse(node)!r} as a condition, but it gives {found.dtype}")
        return found

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return node.value
            case ast.Name():
                return self._columns[node.id]
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                return _ARITHMETIC[type(node.op)](np.asarray(self._value(node.left)), self._value(node.right))
            case ast.UnaryOp(op=ast.Not()):
                return ~self.condition(node.operand)
            case ast.UnaryOp(op=ast.USub()):
                return -np.asarray(self._value(node.operand))
            case ast.BoolOp():
                join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                return reduce(join, [self.condition(value) for value in node.values])
            case ast.Compare():
                left, found = self._value(node.left), np.asarray(True)
                for op, other in zip(node.ops, node.comparators, strict=True):
                    found, left = (
                        found & self._compare(op, left, other),
                        None if isinstance(other, ast.Tuple | ast.List) else self._value(other),
                    )
                return found
        self._refuse(f"uses {ast.unparse(node)[:80]!r}; expected comparisons, arithmetic, and, or, not, in")

    def _compare(self, op: ast.cmpop, left: Any, other: ast.expr) -> Array:
        if isinstance(op, ast.In | ast.NotIn) and isinstance(other, ast.Tuple | ast.List) and other.elts:
            among = reduce(np.logical_or, [_compared(operator.eq, left, self._value(elt)) for elt in other.elts])
            return ~among if isinstance(op, ast.NotIn) else among
        if type(op) not in _COMPARISONS:
            self._refuse(f"compares with {ast.unparse(other)[:80]!r}; `in` takes a list, like: country in ('DE', 'AT')")
        return _compared(_COMPARISONS[type(op)], left, self._value(other))

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(f"where is {self._text!r}, which {what}.", parameter="where")


def _compared(op: Callable[[Any, Any], Any], left: Any, right: Any) -> Array:
    """A comparison; what is missing fits none but `!=`, and `None` is what is missing."""
    if left is None or right is None:
        missing = _is_missing(right if left is None else left)
        return np.asarray(missing if op is operator.eq else ~missing)
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind == "M" and right.dtype.kind == "U":
        right = _as_time(right, left.dtype)
    elif right.dtype.kind == "M" and left.dtype.kind == "U":
        left = _as_time(left, right.dtype)
    are_strings = [one.dtype.kind in "OU" for one in (left, right)]
    if any(are_strings) and not all(are_strings):
        raise TypeError(f"{left.dtype if are_strings[1] else right.dtype} is compared with strings")
    known = ~(_is_missing(left) | _is_missing(right))
    left, right = (np.where(_is_missing(one), "", one) if one.dtype.kind == "O" else one for one in (left, right))
    return np.where(known, np.asarray(op(left, right), dtype=bool), op is operator.ne)


def _is_missing(values: Any) -> Array:
    values = np.asarray(values)
    if values.dtype.kind == "O":
        return np.fromiter((one is None for one in values.ravel()), dtype=bool, count=values.size).reshape(values.shape)
    return (
        np.isnat(values)
        if values.dtype.kind in "mM"
        else np.isnan(values)
        if values.dtype.kind == "f"
        else np.zeros(values.shape, bool)
    )


def _as_time(text: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return text.astype(dtype)
    except ValueError:
        raise ValueError(f"{str(text)!r} is not a time like '2024-12-31' or '2024-12-31 18:00'") from None
