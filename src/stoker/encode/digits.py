"""Layout: limbs as columns of digits, in any integer type and order of memory; and what a column's digits range over.

Both take the digits of a limb off its lower end, one place of all rows at a time, which the compiler makes into vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoker._kernels import kernel
from stoker._types import Array
from stoker.encode.digit_kernels import (
    BLOCK,
    HIGHEST,
    LIMB_PLACES,
    LOWEST,
    LOWEST_PLACE,
    LOWEST_POWER,
    MAX_DECIMAL,
    MIN_DECIMAL,
    Block,
    Numbers,
    Window,
    infinite_value,
    powers_of_ten,
    upper_half,
)
from stoker.errors import BadValueError, OptionError

if TYPE_CHECKING:
    import torch


_TEN = np.uint32(10)


@kernel
def write_columns(
    limbs: Array,
    filled: Array,
    null: Array,
    negative: Array,
    num_rows: int,
    places: int,
    lowest_place: int,
    top: int,
    bottom: int,
    target: Array,
    first: int,
) -> None:
    """Write the flags and the digits from place `top` down to `bottom` to target[column, first + row].

    A limb has so many `places`; those of the first begin at `lowest_place`.
    """
    end = first + num_rows
    flags, signs = null[:num_rows], negative[:num_rows]
    column = target[0][first:end]
    for i in range(num_rows):
        column[i] = flags[i]
    column = target[1][first:end]
    for i in range(num_rows):
        column[i] = signs[i]
    rest = np.empty(num_rows, dtype=np.uint32)
    for number in range(len(limbs)):
        low = lowest_place + places * number
        if low > top or low + places <= bottom:
            continue
        limb = limbs[number][:num_rows]
        for i in range(num_rows):
            rest[i] = limb[i]
        for place in range(low, min(low + places, top + 1)):
            if not filled[number]:
                if place >= bottom:
                    target[2 + top - place][first:end] = 0
            elif place < bottom:
                for i in range(num_rows):
                    rest[i] //= _TEN
            else:
                column = target[2 + top - place][first:end]
                for i in range(num_rows):
                    left = rest[i] // _TEN
                    column[i] = rest[i] - left * _TEN
                    rest[i] = left


@kernel
def widen_ranges(
    limbs: Array,
    filled: Array,
    null: Array,
    num_rows: int,
    places: int,
    lowest_place: int,
    top: int,
    bottom: int,
    least: Array,
    most: Array,
) -> None:
    """Widen least[i] and most[i], the range of digits at place `top` - i, by the rows that are not null.

    A place that has had 0 and 9 cannot widen, so most blocks cost next to nothing.
    """
    flags = null[:num_rows]
    num_null = 0
    for i in range(num_rows):
        num_null += flags[i]
    if num_null == num_rows:
        return
    rest = np.empty(num_rows, dtype=np.uint32)
    for number in range(len(limbs)):
        low, high = max(lowest_place + places * number, bottom), min(lowest_place + places * (number + 1) - 1, top)
        settled = True
        for place in range(low, high + 1):
            if not filled[number]:
                least[top - place] = 0
            settled = settled and least[top - place] == 0 and most[top - place] == 9
        if settled or not filled[number]:
            continue
        limb = limbs[number][:num_rows]
        for i in range(num_rows):
            rest[i] = limb[i]
        for place in range(lowest_place + places * number, high + 1):
            smallest, largest = np.uint32(9), np.uint32(0)
            for i in range(num_rows):
                left = rest[i] // _TEN
                digit = rest[i] - left * _TEN
                rest[i] = left
                largest = max(largest, digit)
                smallest = min(smallest, np.uint32(9) if flags[i] else digit)
            if place >= bottom:
                least[top - place] = min(least[top - place], smallest)
                most[top - place] = max(most[top - place], largest)


# Blocks: a column goes by as limbs, block by block, and each block is written where its digits belong.


def filled_blocks(numbers: Numbers, window: Window) -> Iterator[tuple[int, Block]]:
    """All rows of a column, as one block that is filled again and again; with the number of its first row."""
    block = Block(window)
    for start, values in numbers.blocks(BLOCK):
        infinite = block.fill(values)
        if infinite >= 0:
            raise infinite_value(numbers.name, start + infinite, float(values[infinite]))
        yield start, block


def write_block(block: Block, target: npt.NDArray[Any], start: int) -> None:
    """Write a block to target[column, start + row], of any integer type."""
    write_columns(
        block.limbs,
        block.filled,
        block.null,
        block.negative,
        block.num_rows,
        LIMB_PLACES,
        LOWEST_PLACE,
        block.window.max_decimal,
        block.window.min_decimal,
        target,
        start,
    )


# Profile: what the digits of a column range over, without writing any of them.
#
# One pass with the scratch of a block, whatever the column's length. Profiles of parts merge into that of the whole.


@dataclass(frozen=True, kw_only=True)
class DigitProfile:
    """Counts of a column, and the range of its digits at each place; missing values have no digits."""

    window: Window
    num_rows: int
    num_null: int
    num_negative: int
    num_cut: int
    """How many values have digits other than 0 outside of the window."""
    min_digits: tuple[int, ...]
    """The smallest digit of each place, the highest place first; 0 if there is no value."""
    max_digits: tuple[int, ...]
    """The largest digit of each place."""

    @property
    def used_places(self) -> list[int]:
        """The places at which any digit is not 0, the highest first."""
        return [place for place, digit in zip(self.window.places, self.max_digits, strict=True) if digit]

    def merge(self, other: DigitProfile) -> DigitProfile:
        """The profile of two parts together."""
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
    """What `split_digits` would give, in numbers: missing and negative values, and the digits at each place."""
    return profile_numbers(Numbers.of(values, name=name), Window(max_decimal, min_decimal))


def profile_numbers(numbers: Numbers, window: Window) -> DigitProfile:
    """The profile of a column that is seen as numbers already."""
    least = np.full(window.num_places, 9, dtype=np.int8)
    most = np.zeros(window.num_places, dtype=np.int8)
    num_null = num_negative = num_cut = 0
    for _, block in filled_blocks(numbers, window):
        rows = block.num_rows
        widen_ranges(
            block.limbs,
            block.filled,
            block.null,
            rows,
            LIMB_PLACES,
            LOWEST_PLACE,
            window.max_decimal,
            window.min_decimal,
            least,
            most,
        )
        num_null += int(np.count_nonzero(block.null[:rows]))
        num_negative += int(np.count_nonzero(block.negative[:rows]))
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


def derive_window(numbers: Numbers, max_decimal: int | None, min_decimal: int | None) -> Window:
    """The window that is asked for; a bound that is None is taken from the values."""
    window = Window.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        found = profile_numbers(numbers, Window(HIGHEST, LOWEST))
        window = Window.derived(found.used_places, max_decimal, min_decimal)
    return window


# Digits: a column of numbers as one small whole number a decimal place, which a model can learn place by place.
#
#     digits = stoker.encode.split_digits(prices, min_decimal=-2)
#     digits.matrix                      # int8 [rows, columns]: nan, neg, E18 ... E0, E-1, E-2
#     stoker.encode.join_digits(digits)  # the prices again
#
# Law: the digits are those of the printed number, `np.format_float_positional(abs(x), unique=True, precision=20)`, for every
# float64. They are not `x // 10**place % 10`, which float64 cannot compute: 19.99 would read as 19.98999.


@dataclass(frozen=True, kw_only=True, eq=False)
class Digits:
    """The digits of a column."""

    matrix: npt.NDArray[np.int8] | torch.Tensor
    """int8 [rows, columns], row by row; a tensor where tensors were split."""

    window: Window
    """Which places the columns are."""

    num_cut: int
    """How many values have digits other than 0 that no column holds: joined again, they are not what they were."""

    name: str | None = None
    """The name of the column that was split."""

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: nan, neg, and one a place, the highest first."""
        return self.window.columns

    @property
    def null(self) -> Any:
        """1 where the value is missing, [rows]; its digits are 0."""
        return self.matrix[:, 0]

    @property
    def negative(self) -> Any:
        """1 where the value is below zero, [rows]."""
        return self.matrix[:, 1]

    @property
    def digits(self) -> Any:
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
    values: Any,
    *,
    max_decimal: int | None = ...,
    min_decimal: int | None = ...,
    name: str | None = ...,
    frame: Literal[True],
) -> Any: ...


def split_digits(
    values: Any,
    *,
    max_decimal: int | None = MAX_DECIMAL,
    min_decimal: int | None = MIN_DECIMAL,
    name: str | None = None,
    frame: bool = False,
) -> Any:
    """Split a column of numbers (NumPy, pandas, polars, Arrow, a list, or a tensor on any device) into its digits.

    A bound that is None becomes the highest (lowest) place at which a digit is not 0; with both, no digit is lost.
    `name` is what errors call a column that has no name. With `frame` the result is a pandas DataFrame of int64 with the
    index of the column: a drop-in for `split_sub_columns_digit` of mostlyai-engine.

    Raises `BadValueError` for what is not a number or infinite.
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
    # At least two rows, as the kernel would be compiled anew for one, which is contiguous both ways.
    matrix = np.empty((max(numbers.num_rows, 2), len(window.columns)), dtype=np.int8)
    num_cut = _write(numbers, window, matrix.T)
    return Digits(matrix=matrix[: numbers.num_rows], window=window, num_cut=num_cut, name=numbers.name)


def _write(numbers: Numbers, window: Window, target: Array) -> int:
    num_cut = 0
    for start, block in filled_blocks(numbers, window):
        write_block(block, target, start)
        num_cut += block.num_cut
    return num_cut


def _frame(numbers: Numbers, window: Window) -> Any:
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise OptionError("frame=True makes a pandas DataFrame, but there is no pandas. Install it, or leave frame out.") from None
    columns = np.empty((len(window.columns), numbers.num_rows), dtype=np.int64)
    _write(numbers, window, columns)
    return pandas.DataFrame(columns.T, index=numbers.index, columns=list(window.columns), copy=False)


# Join: digits become the number again; the way back from `split_digits`.
#
# Law: the result is the float64 nearest to the decimal that the digits spell, as `float("19.99")` would give. So what was split
# without a loss (`num_cut` is 0) comes back bit for bit, but for -0.0, which has no sign in digits.

_U = np.uint64
_BLOCK = 2048
_FULL = _U(10**18)
_WHOLE = _U(2**53)
_TENS = 10.0 ** np.arange(23)
_EXACT_POWERS = 55
_PLACE = re.compile(r"E(-?\d{1,2})")


def join_digits(digits: Any) -> Any:
    """Join what `split_digits` made: `Digits`, or a table (pandas, polars, Arrow, a mapping) with its columns in any order.

    A table may lack `nan`, `neg` and places: they count as 0. Gives float64 with NaN for what is missing: a pandas Series with
    the frame's index, a tensor on the device of the digits, or else a NumPy array. Raises `BadValueError` for what is no digit.
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
        raise _no_digit(window.columns[column], first_row + row, int(matrix[row, column]))
    if num_open:  # nearer to the middle between two numbers than 128 bits can tell
        for row in np.flatnonzero(open_rows):
            text = "".join(map(str, matrix[row, 2:].tolist()))
            values[row] = float(f"{'-' if matrix[row, 1] else ''}{text}e{window.min_decimal}")
    return values


def _no_digit(column: str, row: int, value: float) -> BadValueError:
    wanted = "0 or 1" if column in ("nan", "neg") else "a digit from 0 to 9"
    return BadValueError(f"column {column!r} holds {value:g} in row {row + 1:,}, where {wanted} is needed.")


def _from_table(table: Any) -> Any:
    names = table.column_names if hasattr(table, "column_names") else list(getattr(table, "columns", table))
    places = {str(name): int(found[1]) for name in names if (found := _PLACE.fullmatch(str(name)))}
    unknown = [name for name in names if str(name) not in places and name not in ("nan", "neg")]
    if not places or unknown:
        given = ", ".join(map(str, unknown or names)) or "no columns"
        raise OptionError(f"the table of digits has {given}, but its columns are nan, neg, and E18, E17 and so on.")
    window = Window(max(places.values()), min(places.values()))
    columns = {window.columns.index(str(name)): Numbers.of(table[name], name=str(name)) for name in names}
    num_rows = {column.num_rows for column in columns.values()}
    if len(num_rows) != 1:
        raise OptionError(f"the columns of digits have {sorted(num_rows)} rows, but all need the same number.")
    parts = [_joined(matrix, window, start) for start, matrix in _matrices(columns, window, num_rows.pop())]
    values = np.concatenate(parts) if parts else np.empty(0)
    if type(table).__module__.partition(".")[0] == "pandas":
        from importlib import import_module

        return import_module("pandas").Series(values, index=table.index, copy=False)
    return values


def _matrices(columns: Mapping[int, Numbers], window: Window, num_rows: int) -> Iterator[tuple[int, Array]]:
    """The columns as matrices of at most so many rows, with all that is there checked."""
    readers = {number: column.blocks(_BLOCK) for number, column in columns.items()}
    for start in range(0, num_rows, _BLOCK):
        matrix = np.zeros((min(_BLOCK, num_rows - start), len(window.columns)), dtype=np.int8)
        for number, reader in readers.items():
            _, values = next(reader)
            wrong = ~((values >= 0) & (values <= 9) & (values == np.floor(values)))
            if wrong.any():
                row = int(wrong.argmax())
                raise _no_digit(window.columns[number], start + row, float(values[row]))
            matrix[:, number] = values
        yield start, matrix


@kernel
def join_rows(
    matrix: Array, top: int, powers: Array, lowest_power: int, exact_powers: int, tens: Array, target: Array, open_rows: Array
) -> tuple[int, int, int]:
    """Write the number of each row, and mark rows that cannot be decided here as open.

    Returns how many are open, and row and column of the first entry that is no digit (or -1).
    """
    bits = target.view(np.uint64)
    num_open = 0
    for row in range(len(matrix)):
        open_rows[row] = 0
        for flag in range(2):
            if not 0 <= matrix[row, flag] <= 1:
                return num_open, row, flag
        digits, place, more = _U(0), top, False
        for column in range(2, matrix.shape[1]):
            digit = matrix[row, column]
            if not 0 <= digit <= 9:
                return num_open, row, column
            if digits < _FULL:
                digits = digits * _U(10) + _U(digit)
                place = top + 2 - column
            else:
                more = more or digit > 0
        sign = _U(matrix[row, 1]) << _U(63)
        if matrix[row, 0]:
            target[row] = np.nan
        elif digits == _U(0):
            bits[row] = sign
        elif digits < _WHOLE and not more and -len(tens) < place < len(tens):
            number = np.float64(digits)  # both are exact, so the one rounding is right
            number = number / tens[-place] if place < 0 else number * tens[place]
            target[row] = -number if sign else number
        else:
            power = place - lowest_power
            high, low = powers[power, 0], powers[power, 1]
            inexact = _U(0) if 0 <= place <= exact_powers else _U(1)
            upper = _nearest(digits + (_U(1) if more else _U(0)), high, low, place)
            lower = _nearest(digits, high - (inexact if low == _U(0) else _U(0)), low - inexact, place)
            bits[row] = lower | sign
            if lower != upper:
                open_rows[row] = 1
                num_open += 1
    return num_open, -1, -1


@kernel
def _nearest(digits: Any, high: Any, low: Any, place: int) -> Any:
    """The bits of the float64 nearest to digits * 10**place, where (high, low) are 128 bits of that power."""
    exponent = 64 + ((place * 1741647) >> 19)
    while digits >> _U(63) == _U(0):
        digits <<= _U(1)
        exponent -= 1
    bottom = digits * low
    middle = digits * high
    total = middle + upper_half(digits, low)
    top = upper_half(digits, high) + (_U(1) if total < middle else _U(0))
    if top >> _U(63) == _U(0):
        top = (top << _U(1)) | (total >> _U(63))
        total = (total << _U(1)) | (bottom >> _U(63))
        bottom <<= _U(1)
        exponent -= 1
    mantissa, rest = top >> _U(11), top & _U(2047)
    beyond = (total | bottom) != _U(0)
    if rest > _U(1024) or (rest == _U(1024) and (beyond or (mantissa & _U(1)) == _U(1))):
        mantissa += _U(1)
    return (_U(exponent + 1022) << _U(52)) + mantissa
