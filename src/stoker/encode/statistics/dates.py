"""Dates: all that is gathered of a column of dates or moments: the range of each part, extremes, quantiles.

Values are microseconds since 1970; finer ones are rounded down, and those with a time zone are in UTC. What the parts range over
is found from the different values in ascending order, so the calendar is worked out once a day.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.encode.statistics.calendar import PARTS, moment_texts, parse_moments, widen_parts
from stoker.encode.statistics.columns import DateColumn
from stoker.encode.statistics.extremes import Extremes
from stoker.encode.statistics.histogram import NUM_BINS, log_histogram
from stoker.encode.statistics.keys import decode_keys, whole_keys
from stoker.encode.statistics.quantiles import Distribution
from stoker.encode.statistics.runs import Run
from stoker.encode.statistics.states import distribution_of, state_of
from stoker.encode.statistics.waiting import Waiting
from stoker.errors import BadValue
from stoker.store.sharing import to_numpy

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DEFAULT = {"year": 2022, "month": 1, "day": 1}
"""What is said of a column without any date."""


class DateGatherer:
    """Takes in Arrow arrays of dates or timestamps."""

    def __init__(self, name: str, limit: int) -> None:
        self.num_values = self.num_null = 0
        self.least = np.full(len(PARTS), np.iinfo(np.int64).max)
        self.most = np.full(len(PARTS), np.iinfo(np.int64).min)
        self.histogram = np.zeros(NUM_BINS, dtype=np.int64)
        self.extremes = Extremes()
        self.distribution = Distribution(limit)
        self._waiting = Waiting()
        self._name = name

    @staticmethod
    def of(column: DateColumn, limit: int) -> DateGatherer:
        """Go on from what is known of a part."""
        gatherer = DateGatherer(column.name, limit)
        gatherer.num_values, gatherer.num_null = column.num_values, column.num_null
        gatherer.histogram[:] = column.log_hist
        if column.num_present:
            gatherer.least[:] = [column.min_values[part] for part in PARTS]
            gatherer.most[:] = [column.max_values[part] for part in PARTS]
        gatherer.extremes = Extremes(whole_keys(parse_moments(column.min_n)), whole_keys(parse_moments(column.max_n[::-1])))
        if column.state is not None:
            gatherer.distribution = distribution_of(column.state, limit)
        if column.min is not None and column.max is not None:
            ends = whole_keys(parse_moments([column.min, column.max])).tolist()
            gatherer.distribution.least, gatherer.distribution.most = ends
        return gatherer

    def add(self, values: pa.Array) -> None:
        """Take in values."""
        micros = self._microseconds(values)
        self.num_values += len(values)
        self.num_null += values.null_count
        run = self._waiting.add(whole_keys(micros))
        if run is not None:
            self._take(run)

    def merge(self, other: DateGatherer) -> None:
        """Take in what was gathered of other values; it is not used again."""
        self.finish()
        other.finish()
        self.num_values += other.num_values
        self.num_null += other.num_null
        self.least = np.minimum(self.least, other.least)
        self.most = np.maximum(self.most, other.most)
        self.histogram += other.histogram
        self.extremes.merge(other.extremes)
        self.distribution.merge(other.distribution)

    def finish(self) -> None:
        """Take in what still waits."""
        self._take(self._waiting.flush())

    def column(self, **known: Any) -> DateColumn:
        """All that was gathered; `known` is what all columns have."""
        self.finish()
        distribution = self.distribution
        present = self.num_values > self.num_null
        nothing = {part: _DEFAULT.get(part, 0) for part in PARTS}
        ends = [] if distribution.least is None else [distribution.least, distribution.most]
        texts = [_texts(np.array([end], dtype=np.uint64))[0] for end in ends]
        return DateColumn(
            **known,
            num_values=self.num_values,
            num_null=self.num_null,
            num_distinct=len(distribution.run) if distribution.sketch is None else None,
            min=texts[0] if texts else None,
            max=texts[1] if texts else None,
            min_values=dict(zip(PARTS, self.least.tolist(), strict=True)) if present else nothing,
            max_values=dict(zip(PARTS, self.most.tolist(), strict=True)) if present else nothing,
            min_n=_texts(self.extremes.smallest),
            max_n=_texts(self.extremes.largest[::-1]),
            quantiles=_texts(distribution.quantiles()) if present else None,
            rank_error=distribution.rank_error,
            log_hist=self.histogram.tolist(),
            state=state_of(distribution),
        )

    def _microseconds(self, values: pa.Array) -> npt.NDArray[np.int64]:
        if pa.types.is_date32(values.type):
            values = values.cast(pa.timestamp("s"))
        elif pa.types.is_date64(values.type):
            values = values.cast(pa.timestamp("ms"))
        unit = values.type.unit
        present = values.drop_null() if values.null_count else values
        numbers = to_numpy(present.view(pa.int64()))
        if unit == "ns":
            return numbers // 1000
        scale = _MICROSECONDS[unit]
        bound = np.iinfo(np.int64).max // scale
        if scale > 1 and len(numbers) and not -bound <= numbers.min() <= numbers.max() <= bound:
            worst = int(max(numbers.min(), numbers.max(), key=abs))
            raise BadValue(
                f"column {self._name!r} holds {worst} {unit} since 1970 near row {self.num_values + 1:,}, which is beyond the "
                "290,000 years that microseconds reach. Fix it, or make it missing."
            )
        return numbers * scale

    def _take(self, run: Run) -> None:
        if not len(run):
            return
        widen_parts(decode_keys(run.keys, "int"), self.least, self.most)
        self.histogram += log_histogram(run, "int")
        self.extremes.merge(Extremes.of(run))
        self.distribution.add(run)


def _texts(keys: npt.NDArray[np.uint64]) -> list[str]:
    return moment_texts(decode_keys(keys, "int"))
