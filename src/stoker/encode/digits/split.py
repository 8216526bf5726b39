"""Digits: a column of numbers as one small whole number a decimal place, which a model can learn place by place.

    digits = stoker.encode.split_digits(prices, min_decimal=-2)
    digits.matrix                      # int8 [rows, columns]: nan, neg, E18 ... E0, E-1, E-2
    stoker.encode.join_digits(digits)  # the prices again

Law: the digits are those of the printed number, `np.format_float_positional(abs(x), unique=True, precision=20)`, for every
float64. They are not `x // 10**place % 10`, which float64 cannot compute: 19.99 would read as 19.98999.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoker.encode.digits.blocks import filled_blocks, write_block
from stoker.encode.digits.numbers import Numbers
from stoker.encode.digits.profile import derive_window
from stoker.encode.digits.window import MAX_DECIMAL, MIN_DECIMAL, Window
from stoker.errors import OptionError

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


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

    Raises `BadValue` for what is not a number or infinite.
    """
    if type(values).__module__.partition(".")[0] == "torch":
        from stoker.encode.digits.tensor import as_array, split_tensor

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
