"""Digits: a column of numbers as one small integer per decimal place, which a model can learn place by place.

    digits = stoker.encode.split_digits(prices, min_decimal=-2)
    digits.matrix                      # int8 [rows, columns]: nan, neg, E18 ... E0, E-1, E-2
    stoker.encode.join_digits(digits)  # the prices again

The digits are those of the printed number, `np.format_float_positional(abs(x), unique=True, precision=20)`, for every float64.
They are not `x // 10**place % 10`, which float64 cannot compute: 19.99 would read as 19.98999.

A column is processed in blocks of 2048 rows (`digit_columns` reads, `digit_kernels` computes); tensors on a GPU are split there
(`digit_tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoker._types import Array
from stoker.encode.digit_columns import HIGHEST, LOWEST, MAX_DECIMAL, MIN_DECIMAL, Numbers, Window, infinite_value
from stoker.encode.digit_kernels import BLOCK, LOWEST_POWER, Block, join_rows, powers_of_ten
from stoker.errors import BadValueError, OptionError

if TYPE_CHECKING:
    import torch


# ---- splitting ----


@dataclass(frozen=True, kw_only=True, eq=False)
class Digits:
    """The digits of a column, as `split_digits` returns them."""

    matrix: npt.NDArray[np.int8] | torch.Tensor
    """int8 [rows, columns], row-major; a tensor where a tensor was split."""

    window: Window
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


@overload
def split_digits(
    values: Any,
    *,
    max_decimal: int | None = ...,
    min_decimal: int | None = ...,
    name: str | None = ...,
    frame: Literal[False] = ...,
) -> Digits: ...


@overload
def split_digits(
    values: Any, *, max_decimal: int | None = ..., min_decimal: int | None = ..., name: str | None = ..., frame: Literal[True]
) -> Any: ...


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
        values: NumPy array, pandas, polars or Arrow column, list, or tensor on any device.
        max_decimal: Highest decimal place (power of ten). None: the highest place at which any digit is not 0.
        min_decimal: Lowest decimal place. None: the lowest place at which any digit is not 0. With both None, no digit is lost.
        name: Name of the column in error messages, where it has none of its own.
        frame: Return a pandas DataFrame of int64 with the index of the column, as `split_sub_columns_digit` of mostlyai-engine
            does.

    Returns:
        The digits as int8 [rows, columns]: a tensor on the device of `values` for a tensor, else a NumPy array.

    Raises:
        BadValueError: A value is infinite or not a number.
        OptionError: The places are invalid, or `values` is not one column.

    Example:
        >>> digits = split_digits([19.99, -0.5, None], max_decimal=1, min_decimal=-2)
        >>> digits.columns
        ('nan', 'neg', 'E1', 'E0', 'E-1', 'E-2')
        >>> digits.matrix.tolist()
        [[0, 0, 1, 9, 9, 9], [0, 1, 0, 0, 5, 0], [1, 0, 0, 0, 0, 0]]
    """
    if type(values).__module__.partition(".")[0] == "torch":
        from stoker.encode.digit_tensors import as_array, split_tensor

        if not frame:
            return split_tensor(values, max_decimal, min_decimal, name)
        values = as_array(values.detach())
    numbers = Numbers.of(values, name=name)
    window = derive_window(numbers, max_decimal, min_decimal)
    if frame:
        return _frame(numbers, window)
    # At least two rows: a matrix of one row is contiguous both ways, for which the kernel would be compiled again.
    matrix = np.empty((max(numbers.num_rows, 2), len(window.columns)), dtype=np.int8)
    num_cut = _write(numbers, window, matrix.T)
    return Digits(matrix=matrix[: numbers.num_rows], window=window, num_cut=num_cut, name=numbers.name)


def _write(numbers: Numbers, window: Window, target: Array) -> int:
    num_cut = 0
    for start, block in filled_blocks(numbers, window):
        block.write(target, start)
        num_cut += block.num_cut
    return num_cut


def _frame(numbers: Numbers, window: Window) -> Any:
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise OptionError(
            "frame=True returns a pandas DataFrame, but pandas is not installed. Install it, or pass frame=False."
        ) from None
    columns = np.empty((len(window.columns), numbers.num_rows), dtype=np.int64)
    _write(numbers, window, columns)
    return pandas.DataFrame(columns.T, index=numbers.index, columns=list(window.columns), copy=False)


def filled_blocks(numbers: Numbers, window: Window) -> Iterator[tuple[int, Block]]:
    """The rows of a column in one block that is filled again and again, and the number of its first row."""
    block = Block(window)
    for start, values in numbers.blocks(BLOCK):
        infinite = block.fill(values)
        if infinite >= 0:
            raise infinite_value(numbers.name, start + infinite, float(values[infinite]))
        yield start, block


def derive_window(numbers: Numbers, max_decimal: int | None, min_decimal: int | None) -> Window:
    """The window that was requested; a bound that is None is taken from the values."""
    window = Window.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        found = profile_numbers(numbers, Window(HIGHEST, LOWEST))
        window = Window.derived(found.used_places, max_decimal, min_decimal)
    return window


# ---- profiling: what the digits of a column range over, without writing them ----


@dataclass(frozen=True, kw_only=True)
class DigitProfile:
    """Counts of a column and the range of its digits at each place; missing values have no digits."""

    window: Window
    num_rows: int
    num_null: int
    num_negative: int
    num_cut: int
    """Values with digits other than 0 outside of the window."""
    min_digits: tuple[int, ...]
    """The smallest digit of each place, the highest place first; 0 if there is no value."""
    max_digits: tuple[int, ...]
    """The largest digit of each place."""

    @property
    def used_places(self) -> list[int]:
        """The places at which any digit is not 0, the highest first."""
        return [place for place, digit in zip(self.window.places, self.max_digits, strict=True) if digit]

    def merge(self, other: DigitProfile) -> DigitProfile:
        """The profile of this part and `other` together; both need the same window."""
        if self.window != other.window:
            raise OptionError(f"profiles of {self.window} and {other.window} cannot be merged. Make them with the same places.")
        if not other.num_rows - other.num_null:
            least, most = self.min_digits, self.max_digits
        elif not self.num_rows - self.num_null:
            least, most = other.min_digits, other.max_digits
        else:
            least = tuple(map(min, self.min_digits, other.min_digits))
            most = tuple(map(max, self.max_digits, other.max_digits))
        return DigitProfile(
            window=self.window,
            num_rows=self.num_rows + other.num_rows,
            num_null=self.num_null + other.num_null,
            num_negative=self.num_negative + other.num_negative,
            num_cut=self.num_cut + other.num_cut,
            min_digits=least,
            max_digits=most,
        )


def profile_digits(
    values: Any, *, max_decimal: int = MAX_DECIMAL, min_decimal: int = MIN_DECIMAL, name: str | None = None
) -> DigitProfile:
    """Count missing and negative values, and find the range of digits at each place, in one pass without writing digits.

    Args:
        values: A column, as for `split_digits`.
        max_decimal: Highest decimal place.
        min_decimal: Lowest decimal place.
        name: Name of the column in error messages, where it has none of its own.

    Returns:
        The profile. Profiles of parts with the same places can be joined with `merge`.

    Raises:
        BadValueError: A value is infinite or not a number.

    Example:
        >>> profile = profile_digits([19.99, -0.5, None], max_decimal=1, min_decimal=-2)
        >>> profile.num_null, profile.num_negative, profile.max_digits
        (1, 1, (1, 9, 9, 9))
    """
    return profile_numbers(Numbers.of(values, name=name), Window(max_decimal, min_decimal))


def profile_numbers(numbers: Numbers, window: Window) -> DigitProfile:
    """The profile of a column that was opened as numbers."""
    least = np.full(window.num_places, 9, dtype=np.int8)
    most = np.zeros(window.num_places, dtype=np.int8)
    num_null = num_negative = num_cut = 0
    for _, block in filled_blocks(numbers, window):
        block.widen(least, most)
        num_null += int(np.count_nonzero(block.null[: block.num_rows]))
        num_negative += int(np.count_nonzero(block.negative[: block.num_rows]))
        num_cut += block.num_cut
    if num_null == numbers.num_rows:
        least[:] = 0
    return DigitProfile(
        window=window,
        num_rows=numbers.num_rows,
        num_null=num_null,
        num_negative=num_negative,
        num_cut=num_cut,
        min_digits=tuple(least.tolist()),
        max_digits=tuple(most.tolist()),
    )


# ---- joining ----

_TENS = 10.0 ** np.arange(23)
_EXACT_POWERS = 55
_PLACE = re.compile(r"E(-?\d{1,2})")


def join_digits(digits: Any) -> Any:
    """Join digits to the numbers that they were split from.

    The result is the float64 nearest to the decimal that the digits spell, as `float("19.99")` is. So values that were split
    without loss (`num_cut` is 0) return bit for bit, except -0.0, whose sign has no digit.

    Args:
        digits: `Digits`, or a table (pandas, polars, Arrow, a mapping) with columns `nan`, `neg` and `E{place}` in any order.
            Columns that a table lacks count as 0.

    Returns:
        float64, NaN where a value is missing: a pandas Series with the index of a pandas table, a tensor on the device of the
        digits, or else a NumPy array.

    Raises:
        BadValueError: An entry is not a digit.
        OptionError: The table has other columns.

    Example:
        >>> join_digits(split_digits([19.99, -0.5])).tolist()
        [19.99, -0.5]
    """
    if not isinstance(digits, Digits):
        return _from_table(digits)
    if isinstance(digits.matrix, np.ndarray):
        return _joined(digits.matrix, digits.window)
    import torch

    return torch.from_numpy(_joined(digits.matrix.cpu().numpy(), digits.window)).to(digits.matrix.device)


def _joined(matrix: Array, window: Window, first_row: int = 0) -> npt.NDArray[np.float64]:
    if matrix.dtype != np.int8 or matrix.ndim != 2 or matrix.shape[1] != len(window.columns):
        raise OptionError(f"digits are {matrix.dtype} {list(matrix.shape)}, but {window} needs int8 [rows, {len(window.columns)}].")
    matrix = np.ascontiguousarray(matrix).view()
    matrix.flags.writeable = False  # one kind of array, as kernels are compiled for each
    values = np.empty(len(matrix))
    open_rows = np.empty(len(matrix), dtype=np.uint8)
    num_open, row, column = join_rows(
        matrix, window.max_decimal, powers_of_ten(), LOWEST_POWER, _EXACT_POWERS, _TENS, values, open_rows
    )
    if row >= 0:
        raise _not_a_digit(window.columns[column], first_row + row, int(matrix[row, column]))
    if num_open:  # too near to the middle between two float64 for 128 bits to decide
        for row in np.flatnonzero(open_rows):
            text = "".join(map(str, matrix[row, 2:].tolist()))
            values[row] = float(f"{'-' if matrix[row, 1] else ''}{text}e{window.min_decimal}")
    return values


def _not_a_digit(column: str, row: int, value: float) -> BadValueError:
    wanted = "0 or 1" if column in ("nan", "neg") else "a digit from 0 to 9"
    return BadValueError(f"column {column!r} holds {value:g} in row {row + 1:,}, expected {wanted}.")


def _from_table(table: Any) -> Any:
    names = table.column_names if hasattr(table, "column_names") else list(getattr(table, "columns", table))
    places = {str(name): int(found[1]) for name in names if (found := _PLACE.fullmatch(str(name)))}
    unknown = [name for name in names if str(name) not in places and name not in ("nan", "neg")]
    if not places or unknown:
        given = ", ".join(map(str, unknown or names)) or "no columns"
        raise OptionError(f"the table of digits has {given}; expected the columns nan, neg, E18, E17 and so on.")
    window = Window(max(places.values()), min(places.values()))
    columns = {window.columns.index(str(name)): Numbers.of(table[name], name=str(name)) for name in names}
    num_rows = {column.num_rows for column in columns.values()}
    if len(num_rows) != 1:
        raise OptionError(f"the columns of digits have {sorted(num_rows)} rows; expected the same number in all.")
    parts = [_joined(matrix, window, start) for start, matrix in _matrices(columns, window, num_rows.pop())]
    values = np.concatenate(parts) if parts else np.empty(0)
    if type(table).__module__.partition(".")[0] == "pandas":
        return import_module("pandas").Series(values, index=table.index, copy=False)
    return values


def _matrices(columns: Mapping[int, Numbers], window: Window, num_rows: int) -> Iterator[tuple[int, Array]]:
    """The columns as checked matrices of at most `BLOCK` rows."""
    readers = {number: column.blocks(BLOCK) for number, column in columns.items()}
    for start in range(0, num_rows, BLOCK):
        matrix = np.zeros((min(BLOCK, num_rows - start), len(window.columns)), dtype=np.int8)
        for number, reader in readers.items():
            _, values = next(reader)
            wrong = ~((values >= 0) & (values <= 9) & (values == np.floor(values)))
            if wrong.any():
                row = int(wrong.argmax())
                raise _not_a_digit(window.columns[number], start + row, float(values[row]))
            matrix[:, number] = values
        yield start, matrix
