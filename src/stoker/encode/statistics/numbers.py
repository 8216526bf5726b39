"""Numbers: all that is gathered of a column of numbers, while it goes by.

Each run of values is taken apart once: its digits, its place among powers of two, its extremes; then it joins the distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.columns import MAX_DISCRETE, NumberColumn
from stoker.encode.statistics.digit_ranges import DigitRanges
from stoker.encode.statistics.extremes import Extremes
from stoker.encode.statistics.histogram import NUM_BINS, log_histogram
from stoker.encode.statistics.keys import Form, Keys, decode_floats, decode_keys, float_keys, whole_keys
from stoker.encode.statistics.quantiles import Distribution
from stoker.encode.statistics.runs import Run
from stoker.encode.statistics.states import counted_by_key, distribution_of, state_of
from stoker.encode.statistics.waiting import Waiting
from stoker.errors import OptionError
from stoker.store.decimals import decimals_as_floats
from stoker.store.sharing import to_numpy

Array = npt.NDArray[Any]

_FIRST_NOT_NEGATIVE = {"float": 2**63 - 1, "int": 2**63, "uint": 0}  # of floats that is -0.0


def form_of(kind: pa.DataType) -> Form:
    """How the numbers of an Arrow type are held."""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    return "uint" if pa.types.is_uint64(kind) else "int"


class NumberGatherer:
    """Takes in Arrow arrays of numbers."""

    def __init__(self, form: Form, limit: int) -> None:
        self.form: Form = form
        self.num_values = self.num_null = self.num_infinite = self.num_negative = 0
        self.first_infinite: int | None = None
        self.histogram = np.zeros(NUM_BINS, dtype=np.int64)
        self.digits = DigitRanges()
        self.extremes = Extremes()
        self.distribution = Distribution(limit)
        self._waiting = Waiting()

    @staticmethod
    def of(column: NumberColumn, limit: int) -> NumberGatherer:
        """Go on from what is known of a part."""
        gatherer = NumberGatherer(column.form, limit)
        gatherer.num_values, gatherer.num_null = column.num_values, column.num_null
        gatherer.num_infinite, gatherer.first_infinite = column.num_infinite, column.first_infinite
        gatherer.num_negative = column.num_negative
        gatherer.histogram[:] = column.log_hist
        num_finite = column.num_present - column.num_infinite
        gatherer.digits = DigitRanges.of(column.min_digits, column.max_digits, num_finite)
        gatherer.extremes = Extremes(float_keys(np.array(column.min_n))[0], float_keys(np.array(column.max_n[::-1]))[0])
        if column.state is not None:
            gatherer.distribution = distribution_of(column.state, limit)
        if column.min is not None and column.max is not None:
            gatherer.distribution.least, gatherer.distribution.most = map(int, _keys_of([column.min, column.max], column.form))
        return gatherer

    def add(self, values: pa.Array) -> None:
        """Take in values; null and NaN are missing."""
        keys = self._float_keys(values) if self.form == "float" else self._whole_keys(values)
        self.num_values += len(values)
        run = self._waiting.add(keys)
        if run is not None:
            self._take(run)

    def merge(self, other: NumberGatherer) -> None:
        """Take in what was gathered of the values behind these; it is not used again."""
        self.finish()
        other.finish()
        if self.first_infinite is None and other.first_infinite is not None:
            self.first_infinite = self.num_values + other.first_infinite
        self.num_values += other.num_values
        self.num_null += other.num_null
        self.num_infinite += other.num_infinite
        self.num_negative += other.num_negative
        self.histogram += other.histogram
        self.digits.merge(other.digits)
        self.extremes.merge(other.extremes)
        self.distribution.merge(other.distribution)

    def finish(self) -> None:
        """Take in what still waits."""
        self._take(self._waiting.flush())

    def column(self, **known: Any) -> NumberColumn:
        """All that was gathered; `known` is what all columns have."""
        self.finish()
        distribution, form = self.distribution, self.form
        num_finite = self.num_values - self.num_null - self.num_infinite
        least, most = self.digits.named(num_values=num_finite)
        counted = joined_zeros(distribution.run, form) if distribution.sketch is None else None
        ends = None if distribution.least is None else np.array([distribution.least, distribution.most], dtype=np.uint64)
        smallest, largest = (None, None) if ends is None else decode_keys(ends, form).tolist()
        return NumberColumn(
            **known,
            num_values=self.num_values,
            num_null=self.num_null,
            form=form,
            num_infinite=self.num_infinite,
            first_infinite=self.first_infinite,
            num_negative=self.num_negative,
            num_distinct=None if counted is None else len(counted),
            min=smallest,
            max=largest,
            min_digits=least,
            max_digits=most,
            min_n=decode_keys(self.extremes.smallest, "float").tolist(),
            max_n=decode_keys(self.extremes.largest[::-1], "float").tolist(),
            cnt_values=value_texts(counted, form) if counted is not None and len(counted) < MAX_DISCRETE else None,
            quantiles=decode_keys(distribution.quantiles(), form).tolist() if num_finite else None,
            rank_error=distribution.rank_error,
            log_hist=self.histogram.tolist(),
            state=state_of(distribution),
        )

    def _float_keys(self, values: pa.Array) -> Keys:
        keys, num_nan, num_infinite, first = float_keys(_floats(values))
        if first >= 0 and self.first_infinite is None:
            self.first_infinite = self.num_values + first
        self.num_null += num_nan
        self.num_infinite += num_infinite
        return keys

    def _whole_keys(self, values: pa.Array) -> Keys:
        self.num_null += values.null_count
        return whole_keys(_integers(values.drop_null() if values.null_count else values, self.form))

    def _take(self, run: Run) -> None:
        if not len(run):
            return
        zero = np.array([_FIRST_NOT_NEGATIVE[self.form]], dtype=np.uint64)
        self.num_negative += int(run.before(np.searchsorted(run.keys, zero))[0])
        self.histogram += log_histogram(run, self.form)
        self.digits.add(run.keys, self.form)
        extremes = Extremes.of(run)
        self.extremes.merge(Extremes(_as_floats(extremes.smallest, self.form), _as_floats(extremes.largest, self.form)))
        self.distribution.add(run)


def _floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers as float64, NaN where they are missing."""
    if pa.types.is_decimal(values.type):
        values = decimals_as_floats(values)
    elif not pa.types.is_float64(values.type):
        values = values.cast(pa.float64())
    return to_numpy(values.fill_null(float("nan")) if values.null_count else values)


def _integers(values: pa.Array, form: Form) -> Array:
    """Values of which none is missing as int64 or uint64."""
    if pa.types.is_duration(values.type) or pa.types.is_time(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers = to_numpy(values)
    return numbers if form == "uint" else numbers.astype(np.int64, copy=False)


def keys_of_present(values: pa.Array) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """The keys of numbers that are there and finite, and which those are."""
    form = form_of(values.type)
    if form == "float":
        numbers = _floats(values)
        return float_keys(numbers)[0], np.isfinite(numbers)
    present = to_numpy(pc.is_valid(values))
    return whole_keys(_integers(values.drop_null() if values.null_count else values, form)), present


def count_values(column: NumberColumn) -> dict[Any, int]:
    """How often each value of a column occurs, or how many keys have it, whatever their number."""
    if column.rank_error or column.state is None:
        raise OptionError(
            f"column {column.name!r} is needed value by value, but "
            + ("has more different values than were kept." if column.rank_error else "was saved without its state.")
            + " Analyse it with a larger `exact`, or save it with partial=True."
        )
    run = distribution_of(column.state, 1 << 62).run if column.num_keys is None else counted_by_key(column.state)
    if run is None:
        raise OptionError(
            f"column {column.name!r} has more different pairs of key and value than were kept. Analyse it with a larger `exact`."
        )
    run = joined_zeros(run, column.form)
    return dict(zip(decode_keys(run.keys, column.form).tolist(), run.counts.tolist(), strict=True))


def joined_zeros(run: Run, form: Form) -> Run:
    """-0.0 and 0.0 are one value, which is 0.0 if that occurs."""
    place = int(np.searchsorted(run.keys, np.uint64(2**63 - 1)))
    if form != "float" or run.keys[place : place + 2].tolist() != [2**63 - 1, 2**63]:
        return run
    counts = np.delete(run.counts, place)
    counts[place] += run.counts[place]
    return Run(np.delete(run.keys, place), counts)


def count_zeros_once(keys: Keys, counts: npt.NDArray[np.int64], form: Form) -> None:
    """Where both zeros are among the keys, the count of -0.0 goes to 0.0."""
    place = int(np.searchsorted(keys, np.uint64(2**63 - 1)))
    if form == "float" and keys[place : place + 2].tolist() == [2**63 - 1, 2**63]:
        counts[place + 1] += counts[place]
        counts[place] = 0


def value_texts(run: Run, form: Form) -> dict[str, int]:
    """Counts by the text of each value."""
    return dict(zip(map(repr, decode_keys(run.keys, form).tolist()), run.counts.tolist(), strict=True))


def _as_floats(keys: Keys, form: Form) -> Keys:
    """The same values as keys of floats."""
    if form == "float":
        return keys
    return float_keys(decode_floats(keys, form))[0]


def _keys_of(values: list[int | float], form: Form) -> Keys:
    if form == "float":
        return float_keys(np.array(values, dtype=np.float64))[0]
    return whole_keys(np.array(values, dtype=np.int64 if form == "int" else np.uint64))
