"""Digits: a column of numbers as one small integer per decimal place, which a model can learn place by place.

    digits = stoker_recipes.tabular.split_digits(prices, min_decimal=-2)
    digits.matrix                      # int8 [rows, columns]: nan, neg, E18 ... E0, E-1, E-2
    stoker_recipes.tabular.join_digits(digits)  # the prices again

The digits are those of the printed number, `np.format_float_positional(abs(x), unique=True, precision=20)`, for every float64.
They are not `x // 10**place % 10`, which float64 cannot compute: 19.99 would read as 19.98999.

A column (`Numbers`) is read in blocks of 2048 rows, of which only the current one is copied, and `kernels` compute the digits.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array

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
            given = getattr(self, name)
            try:
                if isinstance(given, bool):
                    raise TypeError
                object.__setattr__(self, name, operator.index(given))
            except TypeError:
                raise OptionError(f"{name} is {given!r}; expected an integer.") from None
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
    numbers, window = Numbers.of(values, name=name), DigitWindow.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        window = DigitWindow.derived(_used_places(numbers), max_decimal, min_decimal)

    def write(target: Array) -> int:
        num_cut = 0
        for start, block in _filled_blocks(numbers, window):
            block.write(target, start)
            num_cut += block.num_cut
        return num_cut

    if not frame:
        # At least two rows: a matrix of one row is contiguous both ways, for which the kernel would be compiled again.
        matrix = np.empty((max(numbers.num_rows, 2), len(window.columns)), dtype=np.int8)
        num_cut = write(matrix.T)
        digits = matrix[: numbers.num_rows]
        on_device = digits if device is None else torch.from_numpy(digits).to(device)
        return Digits(matrix=on_device, window=window, num_cut=num_cut, name=numbers.name)
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise OptionError(
            "frame=True returns a pandas DataFrame, but pandas is not installed. Install it, or pass frame=False."
        ) from None
    columns = np.empty((len(window.columns), numbers.num_rows), dtype=np.int64)
    write(columns)
    return pandas.DataFrame(columns.T, index=numbers.index, columns=list(window.columns), copy=False)


def _filled_blocks(numbers: Numbers, window: DigitWindow) -> Iterator[tuple[int, Any]]:
    """The rows of a column in one block that is filled again and again, and the number of its first row."""
    from stoker_recipes.tabular.digits.kernels import BLOCK, DigitBlock

    block = DigitBlock(window.max_decimal, window.min_decimal)
    for start, values in numbers.blocks(BLOCK):
        infinite = block.fill(values)
        if infinite >= 0:
            raise infinite_value(numbers.name, start + infinite, float(values[infinite]))
        yield start, block


def _used_places(numbers: Numbers) -> list[int]:
    """The places at which any digit is not 0."""
    window = DigitWindow(HIGHEST, LOWEST)
    least, most = np.full(window.num_places, 9, dtype=np.int8), np.zeros(window.num_places, dtype=np.int8)
    for _, block in _filled_blocks(numbers, window):
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


Read = Callable[[int, int, Array], Array]
"""Rows start to stop as float64: a view of them, or written to the given block."""
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A column of numbers."""

    name: str | None
    num_rows: int
    read: Read
    index: Any = None
    """The index of a pandas column."""

    @staticmethod
    def of(given: Any, *, name: str | None = None) -> Numbers:
        """Open a column; `name` is its name in errors, where it has none of its own."""
        own = getattr(given, "name", None)
        label = name if name is not None or own is None or own == "" else str(own)
        module = type(given).__module__.partition(".")[0]
        is_table = hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, str | bytes | Mapping)
        if is_table or getattr(given, "ndim", 1) != 1:
            raise OptionError(f"{_column(label)} is {_described(given)}; expected one column of numbers.")
        if module == "pandas":
            return _from_pandas(given, label)
        if isinstance(given, np.ndarray):
            return _from_array(given, label)
        if module in ("polars", "pyarrow") or hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            return _from_arrow(given, label)
        if hasattr(given, "__array__"):
            return _from_array(np.asarray(given), label)
        if not isinstance(given, Sequence):
            raise OptionError(f"{_column(label)} is {_described(given)}; expected a list, an array or a column of numbers.")
        return _from_objects(given, label)

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """All rows in blocks of at most `size`: the first row, and contiguous, read-only float64 that the next block overwrites."""
        scratch = np.empty(min(size, self.num_rows), dtype=np.float64)
        for start in range(0, self.num_rows, size):
            stop = min(start + size, self.num_rows)
            values = self.read(start, stop, scratch[: stop - start])
            if not values.flags.aligned:
                values = values.copy()
            if values.flags.writeable:  # kernels are compiled for each kind of array: always pass read-only ones
                values = values.view()
                values.flags.writeable = False
            yield start, values


def infinite_value(name: str | None, row: int, value: float) -> BadValueError:
    """The error for an infinite value."""
    return _bad(name, row, value, "which has no digits. Replace infinite values, or make them missing")


def _column(name: str | None) -> str:
    return "the column" if name is None else f"column {name!r}"


def _described(given: object) -> str:
    kind = type(given)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if kind.__module__ != "builtins" else f"a {kind.__name__}"


def _bad(name: str | None, row: int, value: object, reason: str) -> BadValueError:
    if isinstance(value, np.datetime64 | np.timedelta64):
        text = str(value)
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    text = " ".join(text.split())  # a repr may have several lines
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return BadValueError(f"{_column(name)} holds {text} ({type(value).__name__}) in row {row + 1:,}, {reason}.")


def _from_array(values: Array, name: str | None, index: Any = None) -> Numbers:
    if values.dtype == object:
        return _from_objects(values, name, index)
    if values.dtype.kind not in "iuf":
        raise _wrong_type(name, values.dtype, (values[i] for i in range(len(values))))
    mask = np.broadcast_to(values.mask, values.shape) if isinstance(values, np.ma.MaskedArray) else None
    plain = values.data if isinstance(values, np.ma.MaskedArray) else values
    shared = plain.dtype == np.float64 and plain.dtype.isnative and plain.flags.c_contiguous and mask is None

    def read(start: int, stop: int, block: Array) -> Array:
        if shared:
            return plain[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit become infinite, which is found later
            np.copyto(block, plain[start:stop], casting="same_kind")
        if mask is not None:
            block[mask[start:stop]] = np.nan
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _from_objects(values: Sequence[Any] | Array, name: str | None, index: Any = None) -> Numbers:
    def read(start: int, stop: int, block: Array) -> Array:
        for i, value in enumerate(values[start:stop]):
            if isinstance(value, float | np.floating | int | np.integer) and not isinstance(value, bool):
                try:
                    block[i] = value
                except OverflowError:
                    raise _bad(name, start + i, value, "which float64 cannot hold") from None
            elif _is_missing(value):
                block[i] = np.nan
            else:
                raise _bad(name, start + i, value, "expected a number. Convert or remove it (in pandas: pandas.to_numeric)")
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _is_missing(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (type(value).__name__ == "NAType" and type(value).__module__.startswith("pandas."))


def _from_pandas(given: Any, name: str | None) -> Numbers:
    pandas = sys.modules["pandas"]
    index = given.index if isinstance(given, pandas.Series) else None
    values = given if isinstance(given, pandas.api.extensions.ExtensionArray) else given.array
    dtype = given.dtype
    if isinstance(dtype, np.dtype):
        return _from_array(given.to_numpy(), name, index)
    if isinstance(dtype, pandas.ArrowDtype):
        return _from_arrow(values.__arrow_array__(), name, index)
    if dtype.kind not in "iuf":
        raise _wrong_type(name, dtype, iter(values))

    def read(start: int, stop: int, block: Array) -> Array:
        block[:] = values[start:stop].to_numpy(dtype=np.float64, na_value=np.nan)
        return block

    return Numbers(name=name, num_rows=len(values), read=read, index=index)


def _from_arrow(given: Any, name: str | None, index: Any = None) -> Numbers:
    import pyarrow as pa

    if isinstance(given, pa.Array):
        chunks, kind = [given], given.type
    else:
        chunked = given if isinstance(given, pa.ChunkedArray) else pa.chunked_array(given)
        chunks, kind = chunked.chunks, chunked.type
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise _wrong_type(name, kind, (value.as_py() for chunk in chunks for value in chunk))
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)

    def read(start: int, stop: int, block: Array) -> Array:
        number = int(np.searchsorted(ends, start, side="right"))
        if stop <= ends[number]:
            return _arrow_values(chunks[number], start - int(ends[number]) + len(chunks[number]), block)
        done = 0
        while done < len(block):
            begin = int(ends[number]) - len(chunks[number])
            part = block[done : done + int(ends[number]) - start - done]
            if len(part):
                part[:] = _arrow_values(chunks[number], start + done - begin, part)
            done, number = done + len(part), number + 1
        return block

    return Numbers(name=name, num_rows=int(ends[-1]) if len(ends) else 0, read=read, index=index)


def _arrow_values(chunk: Any, start: int, block: Array) -> Array:
    """As many values as the block has, from `start` on; a view if they are float64 and none is missing."""
    import pyarrow as pa

    if pa.types.is_decimal(chunk.type):
        from stoker.store import decimals_as_floats, to_numpy

        block[:] = to_numpy(decimals_as_floats(chunk.slice(start, len(block))).fill_null(np.nan))
        return block
    validity, data = chunk.buffers() if not pa.types.is_null(chunk.type) else (None, None)
    if data is None:
        block[:] = np.nan
        return block
    size, first = len(block), chunk.offset + start
    dtype: np.dtype[Any] = np.dtype(chunk.type.to_pandas_dtype())
    values = np.frombuffer(data, dtype=dtype, count=size, offset=first * dtype.itemsize)
    if validity is None or not chunk.null_count:
        if dtype == np.float64:
            return values
        block[:] = values
    else:
        block[:] = values
        bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8, offset=first // 8), count=first % 8 + size, bitorder="little")
        block[bits[first % 8 :] == 0] = np.nan
    return block


def _wrong_type(name: str | None, kind: object, values: Iterator[Any]) -> BadValueError:
    """The error for a column of another type, with its first value."""
    for row, value in enumerate(values):
        if not _is_missing(value):
            return _bad(name, row, value, f"and its type is {kind}, not numeric. Convert it to float64 or an integer type first")
    return BadValueError(
        f"{_column(name)} has the type {kind}, which is not numeric. Convert it to float64 or an integer type first."
    )
