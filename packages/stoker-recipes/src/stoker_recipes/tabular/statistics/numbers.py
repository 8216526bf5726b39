"""Columns of numbers: the range of their digits, and all else that is gathered of them.

Digit ranges are the smallest and largest digit at each decimal place, over the digits of all values as printed by
`np.format_float_positional` with at most 20 decimals. Many values go through the kernels of `digits.kernels` in blocks
of 2048, few are printed. Values come sorted, so the outermost and those next to zero are processed first: once every place below
the leading one has had 0 and 9, the others cannot change the ranges and are skipped.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker.store import decimals_as_floats, to_numpy
from stoker_recipes.tabular.digits.split import LOWEST, MAX_DECIMAL, MIN_DECIMAL, DigitWindow
from stoker_recipes.tabular.statistics import quantiles
from stoker_recipes.tabular.statistics.quantiles import BaseColumn, Extremes, Form, KeyRun, Keys, OrderedGatherer, compiled

BLOCK = 2048
"""Values per block, as in `kernels`."""
_NUM_PLACES = MAX_DECIMAL - LOWEST + 1
_ABOVE = 10.0 ** (MAX_DECIMAL + 1)
_MOST_DIGITS, _LOWEST_POWER = 17, LOWEST - 1
_POWERS = np.array([float(f"1e{power}") for power in range(_LOWEST_POWER, MAX_DECIMAL + 1)])


class DigitRanges:
    """The smallest and largest digits, the highest place first, and the lowest place that any value needs (at most -8)."""

    def __init__(self) -> None:
        self.least = np.full(_NUM_PLACES, 9, dtype=np.int8)
        self.most = np.zeros(_NUM_PLACES, dtype=np.int8)
        self.lowest = MIN_DECIMAL
        self._block: Any = None

    def named(self, *, num_values: int) -> tuple[dict[str, int], dict[str, int]]:
        """Smallest and largest digits by place: E18 down to E-8, or further down where values have more decimals."""
        places = [f"E{place}" for place in range(MAX_DECIMAL, self.lowest - 1, -1)]
        least = self.least if num_values else np.zeros_like(self.least)
        return dict(zip(places, least.tolist(), strict=False)), dict(zip(places, self.most.tolist(), strict=False))

    def add(self, keys: Keys, form: Form) -> None:
        """Widen the ranges by sorted values."""
        kernels = compiled(len(keys))
        if kernels is None:
            self._widen_by_printing(keys, form)
        else:
            self._widen_by_blocks(kernels, keys, form)
        used = np.flatnonzero(self.most)
        self.lowest = min(self.lowest, MAX_DECIMAL - int(used[-1])) if len(used) else self.lowest

    def _widen_by_printing(self, keys: Keys, form: Form) -> None:
        """Print each value and read its digits."""
        rows = []
        for value in np.abs(quantiles.decode_floats(keys, form)).tolist():
            text = repr(value)
            if "e" in text:
                text = np.format_float_positional(value, unique=True)
            if len(text.partition(".")[2]) > -LOWEST:
                text = np.format_float_positional(value, unique=True, precision=-LOWEST)
                self.lowest = LOWEST  # this value has more decimals and was rounded
            whole, _, decimals = text.partition(".")
            rows.append(whole[-MAX_DECIMAL - 1 :].rjust(MAX_DECIMAL + 1, "0") + decimals.ljust(-LOWEST, "0"))
        if rows:
            digits = np.frombuffer("".join(rows).encode(), dtype=np.int8).reshape(len(rows), _NUM_PLACES) - np.int8(ord("0"))
            self.least, self.most = np.minimum(self.least, digits.min(axis=0)), np.maximum(self.most, digits.max(axis=0))

    def _widen_by_blocks(self, kernels: Any, keys: Keys, form: Form) -> None:
        """Compute the digits of the blocks that could still widen the ranges."""
        if not len(keys):
            return
        whole = form != "float"
        window = DigitWindow(MAX_DECIMAL, 0 if whole else LOWEST)
        if self._block is None:
            self._block = kernels.DigitBlock(window.max_decimal, window.min_decimal)
        if whole:
            self.least[window.num_places :] = 0
        least, most = self.least[: window.num_places], self.most[: window.num_places]
        starts = _outside_in(keys, form)
        sizes, lowest = _sizes(keys, starts, form), MAX_DECIMAL + 1
        # Where a leading digit is above the places of the window, nothing is skipped.
        reached = _lowest_reached(sizes, window.min_decimal) if sizes.max() < _ABOVE else np.full(len(starts), LOWEST - 1)
        for number, (start, reach) in enumerate(zip(starts.tolist(), reached.tolist(), strict=True)):
            if number < 2 or reach < lowest:
                self._widen(keys[start : start + BLOCK], form, least, most)
                lowest = kernels.settled_down_to(least, most, MAX_DECIMAL)

    def _widen(self, keys: Keys, form: Form, least: Array, most: Array) -> None:
        block = self._block
        values = quantiles.decode_floats(keys, form)
        values.flags.writeable = False  # kernels are compiled for each kind of array: always pass read-only ones
        block.fill(values)
        block.widen(least, most)
        if block.num_cut and form == "float" and block.num_cut > np.count_nonzero(np.abs(values) >= _ABOVE):
            self.lowest = LOWEST  # a value has more decimals and was rounded


def _outside_in(keys: Keys, form: Form) -> npt.NDArray[np.int64]:
    """Where blocks begin: those with the least and the largest value, the one around zero, then all others."""
    starts = np.arange(0, len(keys), BLOCK)
    zero: npt.NDArray[np.uint64] = np.array([0 if form == "uint" else 2**63], dtype=np.uint64)
    around = min(int(np.searchsorted(keys, zero)[0]) // BLOCK * BLOCK, int(starts[-1]))
    first = list(dict.fromkeys([0, int(starts[-1]), around]))
    return np.concatenate([first, starts[~np.isin(starts, first)]])


def _sizes(keys: Keys, starts: npt.NDArray[np.int64], form: Form) -> npt.NDArray[np.float64]:
    """The least and the largest size of the numbers in each block, [2, blocks]."""
    ends = np.stack([quantiles.decode_floats(keys[places], form) for places in (starts, np.minimum(starts + BLOCK, len(keys)) - 1)])
    across = (ends[0] < 0) & (ends[1] > 0)
    ends = np.sort(np.abs(ends), axis=0)
    ends[0, across] = 0.0
    return ends


def _lowest_reached(sizes: npt.NDArray[np.float64], lowest: int) -> npt.NDArray[np.int64]:
    """The lowest place at which numbers of a block may have a digit: each is printed with at most 17, from its first on."""
    leading = np.searchsorted(_POWERS, sizes[0], side="right") - 1 + _LOWEST_POWER
    return np.asarray(np.maximum(leading - (_MOST_DIGITS - 1), lowest))


MAX_DISCRETE = 100
"""Values are counted individually where fewer than this many are different."""
Encoding = Literal["auto", "discrete", "binned", "digit"]


class NumberColumn(BaseColumn, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="number"):
    """A column of numbers."""

    form: Form
    num_infinite: int
    """Infinite values, which the fields below leave out."""
    first_infinite: int | None
    """Row of the first infinite value, from 0 (for list columns: the index of the value)."""
    num_negative: int
    num_distinct: int | None
    """Different values; null where there are more than are kept."""
    min: int | float | None
    max: int | float | None
    min_digits: dict[str, int]
    max_digits: dict[str, int]
    """The smallest and largest digit at each decimal place, E18 down to E-8 or as far as values have decimals (to E-20)."""
    min_n: list[float]
    max_n: list[float]
    """The 1000 smallest values in ascending order, and the 1000 largest in descending order."""
    cnt_values: dict[str, int] | None
    """Count of each value, where fewer than 100 are different."""
    quantiles: list[int | float] | None
    """The values at 0, 0.001, ... 1 of the sorted values; null where there are none."""
    rank_error: int
    """Bound on how far the rank of a quantile is off, in values; 0 means exact."""
    log_hist: list[int]
    """Number of values between powers of two; see `quantiles.EDGES`."""
    run: KeyRun | UnsetType = UNSET
    """The different values as ordered keys, with their counts (where rows have keys: how many keys have each); not part of the JSON."""

    def analysis(self, encoding: Encoding = "auto") -> dict[str, Any]:
        """What `analyze_numeric` of mostlyai-engine returns for these values. Raises `BadValueError` for infinite values."""
        if self.num_infinite:
            row = 0 if self.first_infinite is None else self.first_infinite
            raise BadValueError(
                f"column {self.name!r} holds an infinite value in row {row + 1:,}, which has no digits. Replace it."
            )
        if encoding not in ("auto", "discrete", "binned", "digit"):
            raise OptionError(f"encoding is {encoding!r}; expected one of auto, discrete, binned, digit.")
        return {
            "has_nan": self.num_null > 0,
            "has_neg": self.num_negative > 0,
            "min_digits": self.min_digits,
            "max_digits": self.max_digits,
            "min_n": self.min_n,
            "max_n": self.max_n,
            "cnt_values": self._counted(encoding),
            "quantiles": self.quantiles if encoding in ("auto", "binned") else None,
            "log_hist": self.log_hist,
        }

    def _counted(self, encoding: Encoding) -> dict[Any, int] | None:
        if encoding in ("binned", "digit"):
            return None
        if self.cnt_values is None and encoding == "discrete":
            return count_values(self)
        number = float if self.form == "float" else int
        return None if self.cnt_values is None else {number(text): count for text, count in self.cnt_values.items()}


_FIRST_NOT_NEGATIVE = {"float": 2**63 - 1, "int": 2**63, "uint": 0}  # of floats that is -0.0


def form_of(kind: pa.DataType) -> Form:
    """How the numbers of an Arrow type are held."""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    return "uint" if pa.types.is_uint64(kind) else "int"


class NumberGatherer(OrderedGatherer):
    """Takes in Arrow arrays of numbers."""

    def __init__(self, form: Form, limit: int) -> None:
        super().__init__(form, limit)
        self.num_infinite = self.num_negative = 0
        self.first_infinite: int | None = None
        self.digits = DigitRanges()

    def add(self, values: pa.Array) -> None:
        """Take in values; null and NaN are missing."""
        if self.form == "float":
            keys, num_null, num_infinite, first = quantiles.float_keys(_floats(values))
            if first >= 0 and self.first_infinite is None:
                self.first_infinite = self.num_values + first
            self.num_infinite += num_infinite
        else:
            keys, num_null = quantiles.whole_keys(_integers(values, self.form)), values.null_count
        self.num_null += num_null
        self.num_values += len(values)
        self.add_keys(keys)

    def column(self, **known: Any) -> NumberColumn:
        """All that was gathered; `known` are the fields that all columns have."""
        known |= self.finish()
        distribution, form = self.distribution, self.form
        num_finite = self.num_values - self.num_null - self.num_infinite
        least, most = self.digits.named(num_values=num_finite)
        counted = joined_zeros(distribution.run, form) if distribution.sketch is None else None
        ends = None if distribution.least is None else np.array([distribution.least, distribution.most], dtype=np.uint64)
        smallest, largest = (None, None) if ends is None else quantiles.decode_keys(ends, form).tolist()
        return NumberColumn(
            **known,
            form=form,
            num_infinite=self.num_infinite,
            first_infinite=self.first_infinite,
            num_negative=self.num_negative,
            num_distinct=None if counted is None else len(counted),
            min=smallest,
            max=largest,
            min_digits=least,
            max_digits=most,
            min_n=quantiles.decode_keys(self.extremes.smallest, "float").tolist(),
            max_n=quantiles.decode_keys(self.extremes.largest[::-1], "float").tolist(),
            cnt_values=value_texts(counted, form) if counted is not None and len(counted) < MAX_DISCRETE else None,
            quantiles=quantiles.decode_keys(distribution.quantiles(), form).tolist() if num_finite else None,
        )

    def _widen(self, run: KeyRun) -> None:
        zero = np.array([_FIRST_NOT_NEGATIVE[self.form]], dtype=np.uint64)
        self.num_negative += int(run.before(np.searchsorted(run.keys, zero))[0])
        self.digits.add(run.keys, self.form)

    def _extremes(self, run: KeyRun) -> Extremes:
        """Extremes of all forms are floats."""
        extremes = Extremes.of(run)
        if self.form == "float":
            return extremes
        return Extremes(
            *(quantiles.float_keys(quantiles.decode_floats(keys, self.form))[0] for keys in (extremes.smallest, extremes.largest))
        )


def _floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers as float64, NaN where they are missing."""
    if pa.types.is_decimal(values.type):
        values = decimals_as_floats(values)
    elif not pa.types.is_float64(values.type):
        values = values.cast(pa.float64())
    return to_numpy(values.fill_null(float("nan")) if values.null_count else values)


def _integers(values: pa.Array, form: Form) -> Array:
    """Values that are not missing as int64 or uint64."""
    values = values.drop_null() if values.null_count else values
    if pa.types.is_duration(values.type) or pa.types.is_time(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers = to_numpy(values)
    return numbers if form == "uint" else numbers.astype(np.int64, copy=False)


def keys_of_present(values: pa.Array) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """The keys of numbers that are there and finite, and which those are."""
    form = form_of(values.type)
    if form == "float":
        numbers = _floats(values)
        return quantiles.float_keys(numbers)[0], np.isfinite(numbers)
    return quantiles.whole_keys(_integers(values, form)), to_numpy(pc.is_valid(values))


def count_values(column: NumberColumn) -> dict[Any, int]:
    """How often each value of a column occurs, or how many keys have it."""
    if column.run is UNSET:
        what = "values" if column.num_keys is None or column.rank_error else "pairs of key and value"
        raise OptionError(f"column {column.name!r} has more different {what} than were kept. Analyse it with a larger `exact`.")
    run = joined_zeros(column.run, column.form)
    return dict(zip(quantiles.decode_keys(run.keys, column.form).tolist(), run.counts.tolist(), strict=True))


def joined_zeros(run: KeyRun, form: Form) -> KeyRun:
    """-0.0 and 0.0 are one value, which is 0.0 if that occurs."""
    counts = run.counts.astype(np.int64)
    place = count_zeros_once(run.keys, counts, form)
    return run if place is None else KeyRun(np.delete(run.keys, place), np.delete(counts, place))


def count_zeros_once(keys: Keys, counts: npt.NDArray[np.int64], form: Form) -> int | None:
    """Where both zeros are among the keys, the count of -0.0 goes to 0.0; returns the place of -0.0, or None."""
    place = int(np.searchsorted(keys, np.uint64(2**63 - 1)))
    if form != "float" or keys[place : place + 2].tolist() != [2**63 - 1, 2**63]:
        return None
    counts[place + 1] += counts[place]
    counts[place] = 0
    return place


def value_texts(run: KeyRun, form: Form) -> dict[str, int]:
    """Counts by the text of each value."""
    return dict(zip(map(repr, quantiles.decode_keys(run.keys, form).tolist()), run.counts.tolist(), strict=True))
