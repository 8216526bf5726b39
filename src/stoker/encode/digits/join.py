"""Join: digits become the number again; the way back from `split_digits`.

Law: the result is the float64 nearest to the decimal that the digits spell, as `float("19.99")` would give. So what was split
without a loss (`num_cut` is 0) comes back bit for bit, but for -0.0, which has no sign in digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.digits.numbers import Numbers
from stoker.encode.digits.product import LOWEST_POWER, powers_of_ten, upper_half
from stoker.encode.digits.split import Digits
from stoker.encode.digits.window import Window
from stoker.errors import BadValue, OptionError
from stoker.kernel import kernel

Array = npt.NDArray[Any]

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
    the frame's index, a tensor on the device of the digits, or else a NumPy array. Raises `BadValue` for what is no digit.
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


def _no_digit(column: str, row: int, value: float) -> BadValue:
    wanted = "0 or 1" if column in ("nan", "neg") else "a digit from 0 to 9"
    return BadValue(f"column {column!r} holds {value:g} in row {row + 1:,}, where {wanted} is needed.")


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
