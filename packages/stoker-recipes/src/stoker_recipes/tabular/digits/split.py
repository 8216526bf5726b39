"""Digits: a column of numbers as one small integer per decimal place, which a model can learn place by place.

    digits = stoker_recipes.tabular.split_digits(prices, min_decimal=-2)
    digits.matrix                      # int8 [rows, columns]: nan, neg, E18 ... E0, E-1, E-2
    stoker_recipes.tabular.join_digits(digits)  # the prices again

The digits are those of the printed number, `np.format_float_positional(abs(x), unique=True, precision=20)`, for every float64.
They are not `x // 10**place % 10`, which float64 cannot compute: 19.99 would read as 19.98999.

A column is read in blocks of 2048 rows, of which only the current one is copied, and `kernels` compute the digits.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker.store import decimals_as_floats
from stoker_recipes.tabular.columns import TableColumn, plain_values, read_column

if TYPE_CHECKING:
    import torch

HIGHEST, LOWEST = 49, -20
"""Beyond these places a printed number has no digits: see docs/encoding/digits.md."""
MAX_DECIMAL, MIN_DECIMAL = 18, -8
"""The default window."""


@dataclass(frozen=True)
class DigitWindow:
    """The places from `max_decimal` down to `min_decimal`, both included."""

    max_decimal: int = MAX_DECIMAL
    min_decimal: int = MIN_DECIMAL

    def __post_init__(self) -> None:
        for name in ("max_decimal", "min_decimal"):
            bound = getattr(self, name)
            try:
                if isinstance(bound, bool):
                    raise TypeError
                object.__setattr__(self, name, operator.index(bound))
            except TypeError:
                raise OptionError(f"{name} is {bound!r}; expected an integer.") from None
        if not LOWEST <= self.min_decimal <= self.max_decimal <= HIGHEST:
            raise OptionError(
                f"max_decimal is {self.max_decimal} and min_decimal {self.min_decimal}, but places end at {HIGHEST} and {LOWEST}. "
                f"Choose {LOWEST} <= min_decimal <= max_decimal <= {HIGHEST}."
            )

    @staticmethod
    def asked(max_decimal: int | None, min_decimal: int | None) -> DigitWindow:
        """The requested window; a bound that is None is as far as possible."""
        return DigitWindow(HIGHEST if max_decimal is None else max_decimal, LOWEST if min_decimal is None else min_decimal)

    @staticmethod
    def derived(used: Collection[int], max_decimal: int | None, min_decimal: int | None) -> DigitWindow:
        """A bound that is None becomes the highest (but at least 0) or lowest place that is used, as far as the other allows."""
        lowest, highest = min(used, default=0), max(used, default=0)
        if max_decimal is None:
            max_decimal = max(highest, 0 if min_decimal is None else min_decimal)
        return DigitWindow(max_decimal, min(lowest, max_decimal) if min_decimal is None else min_decimal)

    @property
    def num_places(self) -> int:
        """Number of columns of digits."""
        return self.max_decimal - self.min_decimal + 1

    @cached_property
    def places(self) -> range:
        """The places in the order of their columns."""
        return range(self.max_decimal, self.min_decimal - 1, -1)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return ("nan", "neg", *(f"E{place}" for place in self.places))


@dataclass(frozen=True, kw_only=True, eq=False)
class Digits:
    """The digits of a column, as `split_digits` returns them."""

    matrix: npt.NDArray[np.int8] | torch.Tensor
    """int8 [rows, columns], row-major; a tensor where a tensor was split."""

    window: DigitWindow
    """The places of the columns."""

    num_cut: int
    """Values with digits other than 0 outside of the window. `join_digits` does not restore these."""

    name: str | None = None
    """The name of the column that was split."""

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: nan, neg, and one per place, the highest first."""
        return self.window.columns

    @property
    def null(self) -> npt.NDArray[np.int8] | torch.Tensor:
        """1 where the value is missing, [rows]; its digits are 0."""
        return self.matrix[:, 0]

    @property
    def negative(self) -> npt.NDArray[np.int8] | torch.Tensor:
        """1 where the value is below zero, [rows]."""
        return self.matrix[:, 1]

    @property
    def digits(self) -> npt.NDArray[np.int8] | torch.Tensor:
        """The digits 0 to 9, [rows, places], the highest place first."""
        return self.matrix[:, 2:]


class _Asked(TypedDict, total=False):
    """The arguments of `split_digits` that do not decide what it returns."""

    max_decimal: int | None
    min_decimal: int | None
    name: str | None


@overload
def split_digits(values: Any, *, frame: Literal[False] = ..., **options: Unpack[_Asked]) -> Digits: ...


@overload
def split_digits(values: Any, *, frame: Literal[True], **options: Unpack[_Asked]) -> Any: ...


def split_digits(
    values: Any,
    *,
    max_decimal: int | None = MAX_DECIMAL,
    min_decimal: int | None = MIN_DECIMAL,
    name: str | None = None,
    frame: bool = False,
) -> Any:
    """Split a column of numbers into its decimal digits.

    Args:
        values: NumPy array, pandas, polars or Arrow column, list, or tensor (one on a GPU is copied to the CPU).
        max_decimal: Highest decimal place (power of ten). None: the highest place at which any digit is not 0.
        min_decimal: Lowest decimal place. None: the lowest place at which any digit is not 0. With both None, no digit is lost.
        name: Name of the column in error messages, where it has none of its own.
        frame: Return a pandas DataFrame of int64 with the index of the column, as `split_sub_columns_digit` of mostlyai-engine
            does.

    Returns:
        The digits as int8 [rows, columns]: a tensor on the device of `values` for a tensor, else a NumPy array.

    Raises:
        BadValueError: A value is infinite or not numeric.
        OptionError: The places are invalid, or `values` is not one column.

    Example:
        >>> digits = split_digits([19.99, -0.5, None], max_decimal=1, min_decimal=-2)
        >>> digits.columns
        ('nan', 'neg', 'E1', 'E0', 'E-1', 'E-2')
        >>> digits.matrix.tolist()
        [[0, 0, 1, 9, 9, 9], [0, 1, 0, 0, 5, 0], [1, 0, 0, 0, 0, 0]]
    """
    device = None
    if type(values).__module__.partition(".")[0] == "torch":
        import torch

        device = values.device
        values = (values.double() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    column, window = _open(values, name), DigitWindow.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        window = DigitWindow.derived(_used_places(column), max_decimal, min_decimal)

    def write(target: Array) -> int:
        num_cut = 0
        for start, block in _filled_blocks(column, window):
            block.write(target, start)
            num_cut += block.num_cut
        return num_cut

    if not frame:
        # At least two rows: a matrix of one row is contiguous both ways, for which the kernel would be compiled again.
        matrix = np.empty((max(column.num_rows, 2), len(window.columns)), dtype=np.int8)
        num_cut = write(matrix.T)
        digits = matrix[: column.num_rows]
        on_device = digits if device is None else torch.from_numpy(digits).to(device)
        return Digits(matrix=on_device, window=window, num_cut=num_cut, name=column.name or None)
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise OptionError(
            "frame=True returns a pandas DataFrame, but pandas is not installed. Install it, or pass frame=False."
        ) from None
    columns = np.empty((len(window.columns), column.num_rows), dtype=np.int64)
    write(columns)
    index = values.index if isinstance(values, pandas.Series) else None
    return pandas.DataFrame(columns.T, index=index, columns=list(window.columns), copy=False)


def _filled_blocks(column: TableColumn, window: DigitWindow) -> Iterator[tuple[int, Any]]:
    """The rows of a column in one block that is filled again and again, and the number of its first row."""
    from stoker_recipes.tabular.digits.kernels import BLOCK, DigitBlock

    block = DigitBlock(window.max_decimal, window.min_decimal)
    for start, values in _blocks(column, BLOCK):
        infinite = block.fill(values)
        if infinite >= 0:
            reason = "which has no digits. Replace infinite values, or make them missing"
            raise column.bad(start + infinite, float(values[infinite]), reason)
        yield start, block


def _used_places(column: TableColumn) -> list[int]:
    """The places at which any digit is not 0."""
    window = DigitWindow(HIGHEST, LOWEST)
    least, most = np.full(window.num_places, 9, dtype=np.int8), np.zeros(window.num_places, dtype=np.int8)
    for _, block in _filled_blocks(column, window):
        block.widen(least, most)
    return [place for place, digit in zip(window.places, most.tolist(), strict=True) if digit]


def join_digits(digits: Digits) -> Any:
    """Join digits to the numbers that they were split from.

    The result is the float64 nearest to the decimal that the digits spell, as `float("19.99")` is. So values that were split
    without loss (`num_cut` is 0) return bit for bit, except -0.0, whose sign has no digit.

    Args:
        digits: What `split_digits` returned, or a model made: `dataclasses.replace(digits, matrix=generated)`.

    Returns:
        float64, NaN where a value is missing: a tensor on the device of the digits, or else a NumPy array.

    Raises:
        BadValueError: An entry is not a digit.
        OptionError: The matrix has another type or number of columns.

    Example:
        >>> join_digits(split_digits([19.99, -0.5])).tolist()
        [19.99, -0.5]
    """
    if isinstance(digits.matrix, np.ndarray):
        return _joined(digits.matrix, digits.window)
    import torch

    return torch.from_numpy(_joined(digits.matrix.cpu().numpy(), digits.window)).to(digits.matrix.device)


def _joined(matrix: Array, window: DigitWindow) -> npt.NDArray[np.float64]:
    from stoker_recipes.tabular.digits.kernels import join_rows, powers_of_ten

    if matrix.dtype != np.int8 or matrix.ndim != 2 or matrix.shape[1] != len(window.columns):
        raise OptionError(f"digits are {matrix.dtype} {list(matrix.shape)}, but {window} needs int8 [rows, {len(window.columns)}].")
    matrix = np.ascontiguousarray(matrix).view()
    matrix.flags.writeable = False  # one kind of array, as kernels are compiled for each
    values, open_rows = np.empty(len(matrix)), np.empty(len(matrix), dtype=np.uint8)
    num_open, row, column = join_rows(matrix, window.max_decimal, powers_of_ten(), values, open_rows)
    if row >= 0:
        name = window.columns[column]
        wanted = "0 or 1" if name in ("nan", "neg") else "a digit from 0 to 9"
        raise BadValueError(f"column {name!r} holds {int(matrix[row, column])} in row {row + 1:,}, expected {wanted}.")
    if num_open:  # too near to the middle between two float64 for 128 bits to decide
        for row in np.flatnonzero(open_rows):
            text = "".join(map(str, matrix[row, 2:].tolist()))
            values[row] = float(f"{'-' if matrix[row, 1] else ''}{text}e{window.min_decimal}")
    return values


def _open(source: Any, name: str | None) -> TableColumn:
    """A column of numbers; `name` is its name in errors, where it has none of its own."""
    own_name = getattr(source, "name", None)
    column = TableColumn(name=name or ("" if own_name is None else str(own_name)), parts=[], kind=np.dtype(object))
    is_table = hasattr(source, "columns") or hasattr(source, "column_names") or isinstance(source, str | bytes | Mapping)
    if is_table or getattr(source, "ndim", 1) != 1:
        raise OptionError(f"{column.label} is {_described(source)}; expected one column of numbers.")
    if isinstance(source, np.ndarray) and source.dtype == np.longdouble:
        with np.errstate(over="ignore"):  # values that do not fit become infinite, which is found later
            source = source.astype(np.float64)
    is_array = hasattr(source, "__array__") or hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    if str(getattr(source, "dtype", "")) == "object" or (isinstance(source, Sequence) and not is_array):
        source = _floats_of_objects(column, source)
    elif not is_array:
        raise OptionError(f"{column.label} is {_described(source)}; expected a list, an array or a column of numbers.")
    column = read_column(column.name, source)
    kind = column.kind
    if isinstance(kind, np.dtype):
        is_number = kind.kind in "iuf"
    else:
        is_number = any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null))
    if not is_number:
        row, value = column.first_value()
        advice = "not numeric. Convert it to float64 or an integer type first"
        if value is None:
            raise BadValueError(f"{column.label} has the type {kind}, which is {advice}.")
        raise column.bad(row, value, f"and its type is {kind}, {advice}")
    return column


def _described(source: object) -> str:
    kind = type(source)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if kind.__module__ != "builtins" else f"a {kind.__name__}"


def _floats_of_objects(column: TableColumn, values: Sequence[Any]) -> Array:
    """Python objects as float64, NaN where they are missing."""
    floats = np.empty(len(values))
    for row, value in enumerate(values):
        if isinstance(value, float | np.floating | int | np.integer) and not isinstance(value, bool):
            try:
                floats[row] = value
            except OverflowError:
                raise column.bad(row, value, "which float64 cannot hold") from None
        elif value is None or (type(value).__name__ == "NAType" and type(value).__module__.startswith("pandas.")):
            floats[row] = np.nan
        else:
            raise column.bad(row, value, "expected a number. Convert or remove it (in pandas: pandas.to_numeric)")
    return floats


def _blocks(column: TableColumn, size: int) -> Iterator[tuple[int, Array]]:
    """All rows in blocks of at most `size`: the first row, and contiguous, read-only float64."""
    start = 0
    for part in column.parts:
        for begin in range(0, len(part), size):
            values = _floats(part[begin : begin + size]).view()
            values.flags.writeable = False  # kernels are compiled for each kind of array: always pass read-only ones
            yield start + begin, values
        start += len(part)


def _floats(part: Any) -> Array:
    """Numbers as float64, NaN where they are missing."""
    if not isinstance(part, np.ndarray) and pa.types.is_null(part.type):
        return np.full(len(part), np.nan)
    if not isinstance(part, np.ndarray) and pa.types.is_decimal(part.type):
        part = decimals_as_floats(part)
    values, gaps = plain_values(part)
    if gaps is None:
        return np.require(values, np.float64, ["C", "A"])
    floats = np.array(values, np.float64)
    floats[gaps] = np.nan
    return floats
