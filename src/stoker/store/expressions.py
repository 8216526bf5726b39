"""Expressions over the columns of a table: `where="price > 0 and country == 'DE'"`, `derive={"change": "log(close) - log(lag(close))"}`.

Expressions have Python's syntax and a small, safe set of operations: arithmetic, comparisons, `and`, `or`, `not`, `in`, and the functions
of `FUNCTIONS`. Columns are written by name, in backticks where the name is not an identifier. Nothing else can be reached from them.
`find_series` is `Store.where`: the series for which an expression over their facts is true.

A time with a zone is a UTC time in arithmetic, and the local time in that zone for functions of the calendar and next to a string.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.shards import Column

MAX_LETTERS = 2000
MAX_LAG = 2**20

_CALENDAR = {"year", "quarter", "month", "day", "weekday", "hour", "minute", "second"}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "abs": (1, 1, np.abs),
    "ceil": (1, 1, np.ceil),
    "clip": (3, 3, np.clip),
    "exp": (1, 1, np.exp),
    "fillnull": (2, 2, lambda x, value: np.where(_is_null(x), value, x)),
    "floor": (1, 1, np.floor),
    "isnull": (1, 1, lambda x: _is_null(x)),
    "log": (1, 1, np.log),
    "log1p": (1, 1, np.log1p),
    "max": (2, 2, np.maximum),
    "min": (2, 2, np.minimum),
    "round": (1, 2, lambda x, digits=0: np.round(x, int(digits))),
    "sign": (1, 1, np.sign),
    "sqrt": (1, 1, np.sqrt),
    "where": (3, 3, np.where),
}
FUNCTIONS = sorted({*_FUNCTIONS, *_CALENDAR, "diff", "lag"})
"""The functions: `lag(x, n)` is the value n steps before (1 by default), `diff(x, n)` the difference to it; both are NaN at the first
steps of a series. `hour(time)` and the other names of the calendar take a time."""

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A checked expression."""

    text: str
    option: str
    """The parameter that it was given by, for messages."""
    columns: tuple[str, ...]
    """Names of the columns that it reads."""
    context: int
    """Steps of the same series before a row that its value depends on."""
    _tree: ast.expr
    _names: Mapping[str, str]
    """Placeholders of names in backticks."""

    def evaluate(self, columns: Mapping[str, Array], steps: Array) -> Array:
        """The value at each row.

        Args:
            columns: Arrays of one value per row: numbers, datetime64, or strings as objects (None is missing).
            steps: The index of each row in its series; rows of a series are consecutive.
        """
        try:
            with np.errstate(all="ignore"):
                value = self._value(self._tree, columns, steps)
        except OptionError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            # NumPy names its loops and casting rules, which say nothing about columns.
            reason = "an operation gets types that it does not take, such as a string or a time next to a number"
            self._refuse(f"cannot be computed: {reason if 'ufunc' in str(error) else error}")
        return np.broadcast_to(np.asarray(value), steps.shape)

    def evaluate_rows(self, columns: Mapping[str, Array], steps: Array) -> Array:
        """The value of a condition at each row, as booleans."""
        found = self.evaluate(columns, steps)
        if found.dtype != np.bool_:
            self._refuse(f"gives {found.dtype}; expected a condition that is true or false")
        return found

    def _value(self, node: ast.expr, columns: Mapping[str, Array], steps: Array) -> Any:
        def value(one: ast.expr) -> Any:
            return self._value(one, columns, steps)

        match node:
            case ast.Constant():
                return np.float64(node.value) if type(node.value) is int and abs(node.value) > 2**62 else node.value
            case ast.Name():
                return columns[self._names.get(node.id, node.id)]
            case ast.BinOp():
                left, right = value(node.left), value(node.right)
                is_integer_power = isinstance(node.op, ast.Pow) and np.asarray(left).dtype.kind in "iub"
                return _BINARY[type(node.op)](
                    np.asarray(left, dtype=np.float64) if is_integer_power else np.asanyarray(left), right
                )
            case ast.UnaryOp(op=ast.Not()):
                return ~self._condition(node.operand, columns, steps)
            case ast.UnaryOp():
                return -np.asarray(value(node.operand)) if isinstance(node.op, ast.USub) else value(node.operand)
            case ast.BoolOp():
                parts = [self._condition(one, columns, steps) for one in node.values]
                return reduce(np.logical_and if isinstance(node.op, ast.And) else np.logical_or, parts)
            case ast.Compare():
                return self._compare(node, columns, steps)
            case ast.Call(func=ast.Name(id=name)):
                arguments = [value(one) for one in node.args]
                if name in ("lag", "diff"):
                    return _lag(arguments[0], _lag_of(node), steps, difference=name == "diff")
                if name in _CALENDAR:
                    return _calendar(name, arguments[0])
                zone = next((one.zone for one in arguments if isinstance(one, ZonedTimes)), None)
                return _with_zone(_FUNCTIONS[name][2](*arguments), zone)
        raise AssertionError(ast.dump(node))  # _check lets nothing else pass

    def _condition(self, node: ast.expr, columns: Mapping[str, Array], steps: Array) -> Array:
        found = np.asarray(self._value(node, columns, steps))
        if found.dtype != np.bool_:
            self._refuse(f"uses {ast.unparse(node)!r} as a condition, but it gives {found.dtype}")
        return found

    def _compare(self, node: ast.Compare, columns: Mapping[str, Array], steps: Array) -> Array:
        left, found = self._value(node.left, columns, steps), np.asarray(True)
        for op, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                choices = [ast.literal_eval(one) for one in other.elts]  # type: ignore[attr-defined]
                among = np.logical_or.reduce([_compared(operator.eq, left, one) for one in choices])
                result, right = (~among if isinstance(op, ast.NotIn) else among), None
            else:
                right = self._value(other, columns, steps)
                result = _compared(_COMPARE[type(op)], left, right)
            found, left = found & result, right
        return found

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(f"{self.option} is {self.text!r}, which {what}.")


def parse_expression(text: str, option: str) -> Expression:
    """Check an expression; raises `OptionError` for anything that is not in the safe set."""

    def refuse(what: str) -> NoReturn:
        raise OptionError(f"{option} is {text[:200]!r}: {what}")

    if not isinstance(text, str) or not text.strip() or len(text) > MAX_LETTERS:
        raise OptionError(f"{option} is {str(text)[:200]!r}; expected an expression of 1 to {MAX_LETTERS:,} characters.")
    names: dict[str, str] = {}

    def placeholder(found: re.Match[str]) -> str:
        names[f"_column{len(names)}_"] = found[1]
        return f"_column{len(names) - 1}_"

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", placeholder, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        refuse("it is not a valid expression. Example: \"price > 0 and country == 'DE'\".")
    columns: dict[str, None] = {}

    def check(node: ast.expr, depth: int = 0) -> int:
        """Refuse what is not in the safe set; the steps before a row that the value depends on."""
        if depth > 50:
            refuse("it is nested more than 50 deep.")

        def most(*nodes: ast.expr) -> int:
            return max((check(one, depth + 1) for one in nodes), default=0)

        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return 0
            case ast.Name():
                columns[names.get(node.id, node.id)] = None
                return 0
            case ast.BinOp() if type(node.op) in _BINARY:
                return most(node.left, node.right)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()):
                return most(node.operand)
            case ast.BoolOp():
                return most(*node.values)
            case ast.Compare():
                for op, other in zip(node.ops, node.comparators, strict=True):
                    is_in = isinstance(op, ast.In | ast.NotIn)
                    if is_in and (len(node.ops) > 1 or not _is_choice(other)):
                        refuse("`in` takes a list of constants, like: country in ('DE', 'AT').")
                    if not is_in and type(op) not in _COMPARE:
                        refuse(f"the comparison {ast.unparse(node)!r} is not in the safe set.")
                return most(node.left, *(one for one in node.comparators if not isinstance(one, ast.Tuple | ast.List)))
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS and not node.keywords:
                least, largest = (1, 1) if name in _CALENDAR else (1, 2) if name in ("lag", "diff") else _FUNCTIONS[name][:2]
                if not least <= len(node.args) <= largest:
                    refuse(
                        f"{name} takes {least if least == largest else f'{least} to {largest}'} arguments, not {len(node.args)}."
                    )
                if name not in ("lag", "diff"):
                    return most(*node.args)
                if _lag_of(node) is None:
                    refuse(f"the steps of {name} are an integer from 1 to {MAX_LAG:,}, like {name}(x, 24).")
                return most(node.args[0]) + (_lag_of(node) or 0)
        refuse(f"{ast.unparse(node)[:80]!r} is not in the safe set of arithmetic, comparisons and {', '.join(FUNCTIONS)}.")

    context = check(tree)
    return Expression(text, option, tuple(columns), context, tree, names)


def _is_choice(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple | ast.List) and bool(node.elts) and all(isinstance(one, ast.Constant) for one in node.elts)


def _lag_of(call: ast.Call) -> int | None:
    if len(call.args) == 1:
        return 1
    steps = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    return steps if type(steps) is int and 1 <= steps <= MAX_LAG else None


def _is_null(x: Any) -> Array:
    x = np.asarray(x)
    if x.dtype.kind == "O":
        return np.fromiter((one is None for one in x), dtype=bool, count=len(x))
    return np.isnat(x) if x.dtype.kind in "Mm" else np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, dtype=bool)


def _compared(op: Callable[[Any, Any], Any], left: Any, right: Any) -> Array:
    """Comparisons with times and strings too: a string beside a time is parsed as one; what is missing fits no comparison but `!=`."""
    left, right = np.asanyarray(left), np.asanyarray(right)
    if left.dtype.kind == "M" and right.dtype.kind == "U":
        left, right = _local(left), _parsed(right, left.dtype)
    if right.dtype.kind == "M" and left.dtype.kind == "U":
        left, right = _parsed(left, right.dtype), _local(right)
    left, right = np.asarray(left), np.asarray(right)
    strings = [one.dtype.kind in "OU" for one in (left, right)]
    if any(strings) and not all(strings):
        raise TypeError(f"{left.dtype if strings[1] else right.dtype} is compared with strings")
    if any(strings):
        known = ~(_is_null(left) | _is_null(right)) if left.ndim or right.ndim else np.asarray(True)
        left, right = (np.where(_is_null(one), "", one) if one.dtype.kind == "O" else one for one in (left, right))
        return np.where(known, np.asarray(op(left, right), dtype=bool), op is operator.ne)
    return np.asarray(op(left, right), dtype=bool)


def _lag(x: Any, count: int | None, steps: Array, *, difference: bool) -> Array:
    x, count = np.broadcast_to(np.asarray(x), steps.shape), count or 1
    if x.dtype.kind not in "iufb":
        raise TypeError(f"lag and diff take numbers, not {x.dtype}")
    values = x.astype(np.float64) if x.dtype.kind != "f" else x
    before: Array = np.full(values.shape, np.nan, dtype=values.dtype)
    before[count:] = values[:-count] if count < len(values) else values[:0]
    before[steps < count] = np.nan
    found: Array = values - before if difference else before
    return found


def _calendar(name: str, times: Any) -> Array:
    times = _local(np.asanyarray(times))
    if times.dtype.kind != "M":
        raise TypeError(f"{name} takes a time, not {times.dtype}")
    days = times.astype("datetime64[D]")
    months = times.astype("datetime64[M]").astype(np.int64)
    seconds = (times - days).astype("timedelta64[s]").astype(np.int64)
    found = {
        "year": lambda: months // 12 + 1970,
        "quarter": lambda: months % 12 // 3 + 1,
        "month": lambda: months % 12 + 1,
        "day": lambda: (days - times.astype("datetime64[M]")).astype(np.int64) + 1,
        "weekday": lambda: (days.astype(np.int64) + 3) % 7,
        "hour": lambda: seconds // 3600,
        "minute": lambda: seconds // 60 % 60,
        "second": lambda: seconds % 60,
    }[name]()
    return np.where(np.isnat(times), np.nan, found)


# Times with a zone.


class ZonedTimes(np.ndarray[Any, Any]):
    """UTC times that know their zone."""

    zone: str | None = None

    def __array_finalize__(self, given: object) -> None:
        self.zone = getattr(given, "zone", None)


def _with_zone(values: Any, zone: str | None) -> Any:
    if zone is None or np.asarray(values).dtype.kind != "M":
        return values
    found = np.asarray(values).view(ZonedTimes)
    found.zone = zone
    return found


def _local(times: Array) -> Array:
    """What clocks show in the zone of times; other values as they are."""
    if not isinstance(times, ZonedTimes) or times.zone is None or times.dtype.kind != "M":
        return np.asarray(times)
    unit = np.datetime_data(times.dtype)[0]
    moments = pa.array(np.atleast_1d(np.asarray(times)).astype(np.int64), mask=np.isnat(np.atleast_1d(times)))
    local = pc.local_timestamp(moments.cast(pa.timestamp(unit, times.zone)))
    found: Array = np.asarray(local.to_numpy(zero_copy_only=False), dtype=times.dtype).reshape(times.shape)
    return found


def _parsed(text: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return text.astype(dtype)
    except ValueError:
        raise ValueError(f"{str(text)!r} is not a time like '2024-12-31' or '2024-12-31 18:00'") from None


# Stored values as expressions see them.


def stored_values(values: Array, kind: str, unit: str | None, texts: Array | None = None) -> Array:
    """Stored numbers as expressions see them: times as datetime64, codes as strings, bfloat16 as float32."""
    if kind in ("timestamp", "duration"):
        name, (step, _, zone) = "datetime64" if kind == "timestamp" else "timedelta64", (unit or "ns").partition(",")
        found: Array = _with_zone(values.view(f"{name}[{step}]"), zone.strip() or None)
        return found
    if kind == "bfloat16":
        return (values.astype("<u4") << np.uint32(16)).view("<f4")
    if kind == "category":
        known: Array = np.array([None], dtype=object) if texts is None else texts
        return known[values]  # code -1 is the last entry, which is None
    return values


def text_array(texts: list[Any]) -> Array:
    """Categories as `stored_values` takes them: None, for missing, is the last."""
    found = np.empty(len(texts) + 1, dtype=object)
    found[: len(texts)] = texts
    return found


LENGTH = "num_steps"
_PART = 1 << 18  # series handled at a time: their strings are Python objects


def find_series(expression: str, *, schema: Mapping[str, Column], values: Mapping[str, Array], offsets: Array, name: str) -> Array:
    """The numbers of the series that fulfil a condition, rising; see `Store.where`. `name` is that of the store, for messages."""
    condition = parse_expression(expression, "where")
    there = [one for one, column in schema.items() if column.level == "series"]
    for used in condition.columns:
        if used in there or (used == LENGTH and used not in schema):
            continue
        if used in schema:
            raise OptionError(
                f"where is {expression!r} and uses {used!r}, which has one value per step in {name}; series are chosen by columns "
                "with one value per series. Rows are filtered when they are packed: stoker.pack(where=…)."
            )
        raise OptionError(
            f"where is {expression!r} and uses {used!r}, but {name} has these columns per series: {', '.join([*there, LENGTH])}."
        )
    if condition.context:
        raise OptionError(f"where is {expression!r}: lag and diff need steps, but series are chosen by one value each.")
    columns = [schema[used] for used in condition.columns if used in schema]
    for column in columns:
        if column.width is not None:
            raise OptionError(f"where uses {column.name!r}, which has {column.width} values per series; expected one.")
    texts = {one.name: text_array(list(one.texts)) for one in columns if one.kind == "category" and one.texts is not None}
    found = [np.empty(0, dtype=np.int64)]
    num_series = len(offsets) - 1
    for start in range(0, num_series, _PART):
        stop = min(start + _PART, num_series)
        known = {one.name: _values(one, values, start, stop, texts.get(one.name)) for one in columns}
        if LENGTH not in schema:
            known[LENGTH] = np.diff(offsets[start : stop + 1])
        found.append(np.flatnonzero(condition.evaluate_rows(known, np.zeros(stop - start, dtype=np.int64))) + start)
    return np.concatenate(found)


def _values(column: Column, values: Mapping[str, Array], start: int, stop: int, texts: Array | None) -> Array:
    """One value per series, as expressions take them."""
    if column.kind == "text" and column.texts is not None:
        found = np.empty(stop - start, dtype=object)
        found[:] = column.texts[start:stop]
        return found
    return stored_values(values[column.name][start:stop], column.kind, column.unit, texts)
