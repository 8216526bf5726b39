"""Limbs: a block of values as fixed-point decimals, eight places a number; between the raw values and all that is made of them.

Limb 3 holds the places 0 to 7, limb 2 the eight decimals, and so on from place -24 up to 55. Nearly all values are placed by
float64 arithmetic that is proven to be right where it is used, many at a time; the few others are left to `digits_shortest`.

Why it is right. Let a be the value, s the decimal that is printed for it, and t = fl(a * scale) with t < 1e15.
- s lies within half a step of a (or within 5e-21, where it is rounded at 1e-20), so s * scale is within t * 2**-52 + 5e-13 of t.
  If no whole number is as near to t as twice that, s * scale and t are cut to the same whole number.
- If m = rint(t) has at most 15 digits and m / scale == a, then m / scale is the only decimal of at most 15 digits that reads
  as a, hence the shortest one. Whole numbers below 2**53 are a step or more apart, so they are printed exactly.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import BadValueError, OptionError

BLOCK = 2048
"""Rows of a block: its limbs stay in the caches, and a call is paid by many rows."""

NUM_LIMBS, LIMB_PLACES, LOWEST_PLACE = 10, 8, -24
_POINT = 3
_TENS = 10 ** np.arange(19, dtype=np.uint64)

_MAX_DECIMALS = 8
_TOO_LARGE = 1e15
_WHOLE = 2.0**53
_RELATIVE, _ABSOLUTE = 2.0**-51, 1e-11
_FEW_DECIMALS, _FEW_LIMIT = 1e4, 1e11


class Block:
    """Up to 2048 values: `limbs[i, row]`, whether limb i is `filled` anywhere, and the flags `null` and `negative` of each row."""

    def __init__(self, window: Window):
        self.window = window
        self.num_rows = self.num_cut = 0
        self.limbs = np.zeros((NUM_LIMBS, BLOCK), dtype=np.int32)
        self.filled = np.zeros(NUM_LIMBS, dtype=np.uint8)
        self.null = np.zeros(BLOCK, dtype=np.uint8)
        self.negative = np.zeros(BLOCK, dtype=np.uint8)
        self._open = np.zeros(BLOCK, dtype=np.uint8)
        decimals = min(max(-window.min_decimal, 0), _MAX_DECIMALS)
        self._scale = float(10**decimals)
        self._may_cut = window.min_decimal >= -_MAX_DECIMALS
        self._step = float(10 ** max(window.min_decimal, 0))
        self._ceiling = float(f"1e{window.max_decimal + 1}")

    def fill(self, values: Array) -> int:
        """Place the values of a block (float64, contiguous, read-only); returns the first infinite one, or -1."""
        self.num_rows = len(values)
        num_open, self.num_cut = place_most(
            values,
            self._scale,
            self._may_cut,
            self._step,
            self._ceiling,
            self.limbs,
            self.filled,
            self.null,
            self.negative,
            self._open,
        )
        if not num_open:
            return -1
        pending = np.flatnonzero(self._open[: len(values)])
        top, bottom = self.window.max_decimal, self.window.min_decimal
        num_cut, infinite = place_shortest(
            values.view(np.uint64),
            pending,
            powers_of_ten(),
            LOWEST_POWER,
            _TENS,
            self.limbs,
            LOWEST_PLACE,
            self.filled,
            top,
            bottom,
        )
        self.num_cut += num_cut
        return infinite


@kernel
def place_most(
    values: Array,
    scale: float,
    may_cut: bool,
    step: float,
    ceiling: float,
    limbs: Array,
    filled: Array,
    null: Array,
    negative: Array,
    open_rows: Array,
) -> tuple[int, int]:
    """Place all values for which float64 arithmetic is proven to be right, and mark the others as open.

    Returns how many are open, and how many of the placed ones have digits that no place holds: below 1 / scale (which only
    happens with `may_cut`), below `step`, or from `ceiling` on.
    """
    num_rows = len(values)
    for i in range(len(filled)):
        if filled[i] and not _POINT - 1 <= i <= _POINT + 1:
            limbs[i, :] = 0
        filled[i] = 0
    # Slices, as the compiler makes vectors only where it sees that no index can be negative.
    decimals, ones, upper = limbs[_POINT - 1][:num_rows], limbs[_POINT][:num_rows], limbs[_POINT + 1][:num_rows]
    null, negative, open_rows = null[:num_rows], negative[:num_rows], open_rows[:num_rows]
    few = min(scale, _FEW_DECIMALS)
    any_decimals = any_ones = any_upper = np.int32(0)
    num_open = num_cut = 0
    for i in range(num_rows):
        value = values[i]
        missing = value != value
        a = 0.0 if missing else abs(value)
        large = a * scale >= _TOO_LARGE
        # Numbers with too many digits in front of the point are tried with four decimals, or with none.
        used = (few if a < _FEW_LIMIT else 1.0) if large else scale
        t = a * used
        nearest = np.rint(t)
        between = abs(t - nearest) > t * _RELATIVE + _ABSOLUTE
        down = between and may_cut and not large
        placed = (down or nearest / used == a) and a < _WHOLE
        whole = np.floor(a) if placed else 0.0
        scaled = (np.floor(t) if down else nearest) if placed else 0.0
        high = np.floor(whole / 1e8)
        parts = np.int32((scaled - whole * used) * (1e8 / used)), np.int32(whole - high * 1e8), np.int32(high)
        decimals[i], ones[i], upper[i] = parts
        any_decimals |= parts[0]
        any_ones |= parts[1]
        any_upper |= parts[2]
        null[i] = missing
        negative[i] = value < 0.0
        open_rows[i] = not placed
        num_open += not placed
        num_cut += placed and (down or a >= ceiling or np.floor(whole / step) * step != whole)
    filled[_POINT - 1], filled[_POINT], filled[_POINT + 1] = any_decimals != 0, any_ones != 0, any_upper != 0
    return num_open, num_cut


# Shortest: the digits of any float64, as it is printed: the fewest that read back as the same number, and the nearest of those.
#
# This is Schubfach (R. Giulietti, "The Schubfach way to render doubles"), in whole numbers without a loop. A number that needs
# more than 20 decimals is printed as NumPy does with `precision=20`: its exact value, rounded half to even at 1e-20.
# Law: digits are those of `np.format_float_positional(abs(x), unique=True, precision=20)`.

_U = np.uint64
_FRACTION = _U(2**52 - 1)
_HIDDEN = _U(2**52)
_DECIMALS = 20
_FIVES = _U(5**_DECIMALS)
_HIGHEST = 49
_MOST_DIGITS = 17
_LIMB = _U(10**8)


@kernel
def place_shortest(
    bits: Array,
    pending: Array,
    powers: Array,
    lowest_power: int,
    tens: Array,
    limbs: Array,
    lowest_place: int,
    filled: Array,
    top: int,
    bottom: int,
) -> tuple[int, int]:
    """Place the digits of the values `pending` (as bits) into their limbs.

    `tens` are 10**0 to 10**18, `powers` those of `powers_of_ten`. Returns how many of them have digits outside of the
    places `top` to `bottom`, and the first that is infinite (or -1).
    """
    num_cut = 0
    for row in pending:
        word = bits[row]
        biased: Any = np.int64((word >> _U(52)) & _U(2047))
        if biased == 2047:
            return num_cut, row
        mantissa = word & _FRACTION
        closer = mantissa == _U(0) and biased > 1
        if biased:
            mantissa |= _HIDDEN
        exponent = (biased if biased else 1) - 1075
        if mantissa == _U(0):
            continue

        # The shortest decimal `digits * 10**place` within half a step of the value.
        place = (exponent * 1262611 - (524031 if closer else 0)) >> 22
        shift = _U(exponent + ((-place * 1741647) >> 19) + 1)
        power = -place - lowest_power
        high, low = powers[power, 0], powers[power, 1]
        four = mantissa << _U(2)
        odd = mantissa & _U(1)
        below = _scaled(high, low, (four - (_U(1) if closer else _U(2))) << shift) + odd
        value = _scaled(high, low, four << shift)
        above = _scaled(high, low, (four + _U(2)) << shift) - odd
        digits = value >> _U(2)
        tenth = digits // _U(10)
        down, up = below <= _U(40) * tenth, _U(40) * tenth + _U(40) <= above
        if digits >= _U(10) and down != up:
            digits = tenth + (_U(1) if up else _U(0))
            place += 1
        else:
            down, up = below <= _U(4) * digits, _U(4) * digits + _U(4) <= above
            if down == up:
                middle = _U(4) * digits + _U(2)
                up = value > middle or (value == middle and (digits & _U(1)) == _U(1))
            digits += _U(1) if up else _U(0)

        cut = False
        if place < -_DECIMALS:
            unit = tens[min(-_DECIMALS - place, _MOST_DIGITS + 1)]
            cut = digits % unit != _U(0)
            digits = _rounded(mantissa, -exponent - _DECIMALS) if cut else digits // unit
            place = -_DECIMALS

        if place + _MOST_DIGITS > top + 1:  # the leading digit may stand above the window
            num_digits = 1
            while num_digits <= _MOST_DIGITS and digits >= tens[num_digits]:
                num_digits += 1
            cut |= place + num_digits > top + 1
            if place + num_digits > _HIGHEST + 1:  # printed numbers end behind 50 digits, so the leading one stands there
                place = _HIGHEST + 1 - num_digits
        if place < bottom:
            cut |= digits % tens[min(bottom - place, _MOST_DIGITS)] != _U(0)
        num_cut += cut

        limb = (place - lowest_place) >> 3
        unit = tens[(place - lowest_place) & 7]
        while digits > _U(0):
            part = (digits % _LIMB) * unit
            digits //= _LIMB
            limbs[limb, row] += np.int32(part % _LIMB)
            filled[limb] = 1
            limb += 1
            part //= _LIMB
            if part:
                limbs[limb, row] += np.int32(part)
                filled[limb] = 1
    return num_cut, -1


@kernel
def _scaled(high: Any, low: Any, value: Any) -> Any:
    """The 128-bit number times `value` over 2**128, with the lowest bit set where anything was cut off."""
    middle = high * value
    carry = upper_half(low, value)
    total = middle + carry
    upper = upper_half(high, value) + (_U(1) if total < middle else _U(0))
    return upper | (_U(1) if total > _U(1) else _U(0))


@kernel
def _rounded(mantissa: Any, halvings: int) -> Any:
    """mantissa * 5**20 / 2**halvings, rounded half to even. It is below 2**64."""
    if halvings > 120:
        return _U(0)
    low, high = mantissa * _FIVES, upper_half(mantissa, _FIVES)
    if halvings >= 64:
        by = _U(halvings - 64)
        whole = high >> by
        rest, sticky = high - (whole << by), low != _U(0)
        if by == _U(0):
            half, rest, sticky = _U(2**63), low, False
        else:
            half = _U(1) << (by - _U(1))
    else:
        by = _U(halvings)
        whole = (low >> by) | (high << (_U(64) - by))
        rest, sticky = low & ((_U(1) << by) - _U(1)), False
        half = _U(1) << (by - _U(1))
    up = rest > half or (rest == half and (sticky or (whole & _U(1)) == _U(1)))
    return whole + (_U(1) if up else _U(0))


# Window: which decimal places become columns, from 10**max_decimal down to 10**min_decimal.
#
# Law: the columns are `nan`, `neg` and one `E{place}` a place, the highest first.

HIGHEST, LOWEST = 49, -20
"""Beyond these places a printed number has no digits of its own: see docs/encoding/digits.md."""

MAX_DECIMAL, MIN_DECIMAL = 18, -8
"""The window where none is asked for."""


@dataclass(frozen=True)
class Window:
    """The places from `max_decimal` down to `min_decimal`, both included."""

    max_decimal: int = MAX_DECIMAL
    min_decimal: int = MIN_DECIMAL

    def __post_init__(self) -> None:
        for name in ("max_decimal", "min_decimal"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not LOWEST <= self.min_decimal <= self.max_decimal <= HIGHEST:
            raise OptionError(
                f"max_decimal is {self.max_decimal} and min_decimal {self.min_decimal}, but places end at {HIGHEST} and {LOWEST}. "
                f"Choose {LOWEST} <= min_decimal <= max_decimal <= {HIGHEST}."
            )

    @staticmethod
    def asked(max_decimal: int | None, min_decimal: int | None) -> Window:
        """The window that is asked for; a bound that is None is as far as it can be."""
        return Window(HIGHEST if max_decimal is None else max_decimal, LOWEST if min_decimal is None else min_decimal)

    @staticmethod
    def derived(used: Collection[int], max_decimal: int | None, min_decimal: int | None) -> Window:
        """A bound that is None becomes the highest (but at least 0) or lowest place that is used, as far as the other allows."""
        lowest, highest = min(used, default=0), max(used, default=0)
        if max_decimal is None:
            max_decimal = max(highest, 0 if min_decimal is None else min_decimal)
        return Window(max_decimal, min(lowest, max_decimal) if min_decimal is None else min_decimal)

    @property
    def num_places(self) -> int:
        """How many columns of digits there are."""
        return self.max_decimal - self.min_decimal + 1

    @cached_property
    def places(self) -> range:
        """The places in the order of their columns."""
        return range(self.max_decimal, self.min_decimal - 1, -1)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return ("nan", "neg", *(f"E{place}" for place in self.places))


def _whole(name: str, given: object) -> int:
    if isinstance(given, bool):
        raise OptionError(f"{name} is {given}, but a place is a whole number.")
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"{name} is {given!r}, but a place is a whole number.") from None


# Product: the upper half of a product of two 64-bit numbers, which kernels cannot say in Python.

LOWEST_POWER, HIGHEST_POWER = -292, 324


def _upper_half(typing: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


upper_half: Callable[[Any, Any], Any] = intrinsic(_upper_half)
"""The upper 64 bits of the product of two uint64."""


@cache
def powers_of_ten() -> npt.NDArray[np.uint64]:
    """10**p from p = -292 on, as 128 bits: the number (upper, lower) times 2**(floor(log2(10**p)) - 127), rounded up."""
    rows = []
    for power in range(LOWEST_POWER, HIGHEST_POWER + 1):
        numerator, denominator = 10 ** max(power, 0), 10 ** max(-power, 0)
        shift = 127 - (numerator.bit_length() - 1 if power >= 0 else -denominator.bit_length())
        scaled = -(-(numerator << max(shift, 0)) // (denominator << max(-shift, 0)))
        rows.append((scaled >> 64, scaled & (2**64 - 1)))
    table = np.array(rows, dtype=np.uint64)
    table.flags.writeable = False
    return table


# Numbers: one column of numbers from wherever it comes, as blocks of float64 in which what is missing is NaN.
#
# It stands before the encoders. NumPy, pandas, polars, Arrow and plain lists are taken; nothing is copied but the block at hand,
# so a column costs no memory of its own. Law: what is not a number is an error that names column, row and value.

Read = Callable[[int, int, Array], Array]
"""Rows start to stop as float64: where they lie, or written to the block that is given."""

_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A column of numbers."""

    name: str | None
    num_rows: int
    read: Read
    index: Any = None
    """That of pandas, where the column is one of pandas."""

    @staticmethod
    def of(given: Any, *, name: str | None = None) -> Numbers:
        """See a column as numbers; `name` is what errors call it, where it has no name of its own."""
        own = getattr(given, "name", None)
        label = name if name is not None or own is None or own == "" else str(own)
        module = type(given).__module__.partition(".")[0]
        is_table = hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, str | bytes | Mapping)
        if is_table or getattr(given, "ndim", 1) != 1:
            raise OptionError(f"{_column(label)} is {_described(given)}, but one column of numbers is needed.")
        if module == "pandas":
            return _from_pandas(given, label)
        if isinstance(given, np.ndarray):
            return _from_array(given, label)
        if module in ("polars", "pyarrow") or hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            return _from_arrow(given, label)
        if hasattr(given, "__array__"):
            return _from_array(np.asarray(given), label)
        if not isinstance(given, Sequence):
            raise OptionError(f"{_column(label)} is {_described(given)}, but a list, an array or a column of numbers is needed.")
        return _from_objects(given, label)

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """All rows in blocks of at most `size`: the first row, and contiguous, read-only float64 that the next block overwrites."""
        scratch = np.empty(min(size, self.num_rows), dtype=np.float64)
        for start in range(0, self.num_rows, size):
            stop = min(start + size, self.num_rows)
            values = self.read(start, stop, scratch[: stop - start])
            if not values.flags.aligned:
                values = values.copy()
            if values.flags.writeable:  # one kind of array, as kernels are compiled for each
                values = values.view()
                values.flags.writeable = False
            yield start, values


def infinite_value(name: str | None, row: int, value: float) -> BadValueError:
    """The error for a number without digits."""
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
    text = " ".join(text.split())  # some things show themselves in many lines
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
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit becomes infinite, which is found later
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
                raise _bad(name, start + i, value, "where a number is needed. Convert or remove it (in pandas: pandas.to_numeric)")
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
    """As many values as the block has, from `start` on: where they lie if they are float64 without gaps."""
    import pyarrow as pa

    if pa.types.is_decimal(chunk.type):
        from stoker.store.interop import decimals_as_floats, to_numpy

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
    """The first value shows what is wrong."""
    for row, value in enumerate(values):
        if not _is_missing(value):
            return _bad(name, row, value, f"and its type is {kind}, not a number. Convert it first (to float64 or a whole number)")
    return BadValueError(
        f"{_column(name)} has the type {kind}, which is not a number. Convert it first (to float64 or a whole number)."
    )
