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
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.arrow import from_bfloat16, from_numpy, from_texts, to_numpy
from stoker.store.shards import Column, StoredColumns

LENGTH = "num_steps"
MAX_LETTERS = 2000

_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ARROW_COMPARISONS = {
    operator.eq: "equal", operator.ne: "not_equal", operator.lt: "less", operator.le: "less_equal", operator.gt: "greater",
    operator.ge: "greater_equal",
}  # fmt: skip


def find_series(condition: str, store: StoredColumns) -> Array:
    """The numbers of the series of a store that fulfil a condition, rising."""
    tree, names = _parse(condition)
    _check_columns(condition, list(names.values()), store)
    known = {name: _read(store, store.schema[name]) for name in names.values() if name in store.schema}
    known.setdefault(LENGTH, np.diff(store.offsets))
    is_true = _Evaluation(condition, {alias: known[name] for alias, name in names.items()}).condition(tree)
    return np.flatnonzero(np.broadcast_to(is_true, len(store)))


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


def _check_columns(condition: str, names: list[str], store: StoredColumns) -> None:
    """Refuse columns that do not have one value per series."""
    per_series = [name for name, column in store.schema.items() if column.level == "series"]
    for name in names:
        if name == LENGTH and name not in store.schema:
            continue
        if name not in per_series:
            has = f"has one value per step in {store.name}" if name in store.schema else f"{store.name} does not have"
            raise OptionError(
                f"where is {condition!r} and uses {name!r}, which {has}; series are chosen by columns with one value per series: "
                f"{', '.join([*per_series, LENGTH])}. To leave out rows, pack with sql=.",
                parameter="where",
            )
        if (width := store.schema[name].width) is not None:
            raise OptionError(f"where uses {name!r}, which has {width} values per series; expected one.", parameter="where")


def _read(store: StoredColumns, column: Column) -> Any:
    """One value per series: numbers and datetime64 of NumPy, or strings of Arrow, as the strings of all series would fill the memory."""
    if column.texts is not None:
        texts = from_texts(column.texts)
        codes = None if column.dtype is None else from_numpy(store.column(column.name))
        return texts if codes is None else texts.take(pc.if_else(pc.less(codes, 0), None, codes))
    values = store.column(column.name)
    if column.kind == "bfloat16":
        return from_bfloat16(values)
    if column.kind in ("timestamp", "duration"):
        return values.view(f"{'M' if column.kind == 'timestamp' else 'm'}8[{(column.unit or 'ns').partition(',')[0]}]")
    return values


class _Evaluation:
    """The value of a condition over some series."""

    def __init__(self, text: str, columns: Mapping[str, Array]) -> None:
        self._text, self._columns = text, columns

    def condition(self, node: ast.expr) -> Array:
        """Whether a part of the condition is true, for each series."""
        try:
            with np.errstate(all="ignore"):
                is_true = np.asarray(self._value(node))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # NumPy names its loops and casting rules, which say nothing about columns.
            reason = (
                "an operation gets types that it does not take, such as a string next to a number"
                if "ufunc" in str(error)
                else error
            )
            self._refuse(f"cannot be computed: {reason}")
        if is_true.dtype != np.bool_:
            self._refuse(f"uses {ast.unparse(node)!r} as a condition, but it gives {is_true.dtype}")
        return is_true

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
                left, holds = self._value(node.left), np.asarray(True)
                for op, other in zip(node.ops, node.comparators, strict=True):
                    holds = holds & self._compare(op, left, other)
                    left = None if isinstance(other, ast.Tuple | ast.List) else self._value(other)
                return holds
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
    if isinstance(left, pa.Array) or isinstance(right, pa.Array):
        if not all(isinstance(side, pa.Array | str) for side in (left, right)):
            other = np.asarray(right if isinstance(left, pa.Array) else left)
            raise TypeError(f"{other.dtype} is compared with strings")
        is_true = pc.call_function(_ARROW_COMPARISONS[op], [left, right])
        return to_numpy(pc.fill_null(is_true, op is operator.ne))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind == "M" and right.dtype.kind == "U":
        right = _as_time(right, left.dtype)
    elif right.dtype.kind == "M" and left.dtype.kind == "U":
        left = _as_time(left, right.dtype)
    are_strings = [side.dtype.kind == "U" for side in (left, right)]
    if any(are_strings) and not all(are_strings):
        raise TypeError(f"{left.dtype if are_strings[1] else right.dtype} is compared with strings")
    known = ~(_is_missing(left) | _is_missing(right))
    return np.where(known, np.asarray(op(left, right), dtype=bool), op is operator.ne)


def _is_missing(values: Any) -> Array:
    if isinstance(values, pa.Array):
        return to_numpy(values.is_null())
    values = np.asarray(values)
    is_missing = {"m": np.isnat, "M": np.isnat, "f": np.isnan}.get(values.dtype.kind)
    return np.zeros(values.shape, bool) if is_missing is None else is_missing(values)


def _as_time(text: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return text.astype(dtype)
    except ValueError:
        raise ValueError(f"{str(text)!r} is not a time like '2024-12-31' or '2024-12-31 18:00'") from None
