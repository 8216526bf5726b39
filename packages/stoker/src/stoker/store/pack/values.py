"""Arrow values become NumPy numbers: `to_numbers`, `Categories`, bfloat16 and `fill_forward`; local times become UTC.

Every cast is checked: nothing is rounded, cut or wrapped silently. A missing value is NaN for floats, the smallest int64 for times, -1
for categories. Integers have no such value, so integers with missing values raise `MissingIntegersError`, and the plan makes them
float64.

A local time (`LocalTimes`) that occurs twice is resolved by the order of the rows of its series: the first pass through the repeated
hour is that before the clock was set back, and where the time falls or repeats, the second begins. Such rows are few (one hour per
year), so they are handled one at a time. What was seen of them is the only state, and the journal of a pack keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import BadValueError, OptionError, SourceTooLargeError
from stoker.store.arrow import decimals_as_floats, fill_null, from_bfloat16, from_numpy, to_numpy
from stoker.store.formats.base import place_fields
from stoker.store.pack.column_types import ColumnPlan
from stoker.store.pack.options import Time
from stoker.store.shards import MISSING_CODE, MISSING_TIME

Locate = Callable[[int], str]  # from the index of a value to "row 12 of prices.csv"


class MissingIntegersError(Exception):
    """An integer or boolean column turned out to have missing values; its argument is the error to raise where types are settled."""


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array.

    Example:
        >>> one_array(pa.chunked_array([[1], [2]])).to_pylist()
        [1, 2]
    """
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def missing_mask(values: pa.Array) -> Array:
    """Which values are missing: null, or NaN."""
    return to_numpy(pc.is_null(values, nan_is_null=True))


def to_numbers(values: pa.Array, field: ColumnPlan, locate: Locate) -> Array:
    """The numbers of a `number`, `bfloat16`, `timestamp` or `duration` field, in its dtype."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if field.kind in ("timestamp", "duration"):
        return _times(values, field, locate)
    if pa.types.is_decimal(values.type):
        values = decimals_as_floats(values)
    elif pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    if pa.types.is_floating(values.type):
        values = fill_null(values, float("nan"))
    elif values.null_count:
        if field.dtype.kind != "f" and field.kind != "bfloat16":
            where = locate(int(missing_mask(values).argmax()))
            what = (
                f"column {field.name!r} is missing in {where}, which {field.dtype} cannot store. "
                "Choose a float type with dtype=, or pass missing='drop'."
            )
            raise MissingIntegersError(BadValueError(what, parameter="dtype", column=field.name, **place_fields(where)))
        if not pa.types.is_boolean(values.type):  # integers with missing values become float64, which must hold them
            whole = to_numpy(fill_null(values, 0))
            _refuse(_differs(whole, whole.astype(np.float64)), whole, "float64", field, locate, gaps=True)
        values = fill_null(values.cast(pa.float64(), safe=False), float("nan"))
    numbers = to_numpy(values)
    if field.kind != "bfloat16":
        return _cast(numbers, field.dtype, field, locate)
    halves = to_bfloat16(_cast(numbers, np.dtype("<f4"), field, locate))
    result = from_bfloat16(halves)
    bad = np.isfinite(numbers) & ~np.isfinite(result) if numbers.dtype.kind == "f" else result != numbers
    _refuse(bad, numbers, "bfloat16", field, locate)
    return halves


def _times(values: pa.Array, field: ColumnPlan, locate: Locate) -> Array:
    if pa.types.is_date32(values.type):
        values = values.cast(pa.timestamp("s"))
    elif pa.types.is_date64(values.type):
        values = values.cast(pa.timestamp("ms"))
    unit = (field.unit or "ns").split(",")[0]
    if getattr(values.type, "unit", unit) != unit:
        target = pa.timestamp(unit, values.type.tz) if pa.types.is_timestamp(values.type) else pa.duration(unit)
        try:
            values = values.cast(target)
        except pa.ArrowInvalid as error:
            raise BadValueError(
                f"column {field.name!r} near {locate(0)} holds a time that {field.unit} cannot hold: {error}.", column=field.name
            ) from error
    if pa.types.is_time32(values.type):
        values = values.view(pa.int32()).cast(pa.int64())
    return to_numpy(fill_null(values.view(pa.int64()), int(MISSING_TIME)))


def _cast(values: Array, target: np.dtype[Any], field: ColumnPlan, locate: Locate) -> Array:
    """Cast to a dtype; a number that it cannot hold is an error (floats may round, but not overflow)."""
    if values.dtype == target:
        return values
    with np.errstate(all="ignore"):
        result = values.astype(target)
        # NumPy calls the cast from 64-bit integers to float64 safe, which it is not.
        if values.dtype.itemsize == 8 or not np.can_cast(values.dtype, target, casting="safe"):
            if values.dtype.kind == "f" and target.kind == "f":
                bad = np.isfinite(values) & ~np.isfinite(result)
            elif target.kind == "b":
                bad = (values != 0) & (values != 1)
            else:
                bad = _differs(values, result)
            _refuse(bad, values, target.name, field, locate)
    return result


def _differs(values: Array, result: Array) -> Array:
    """Which numbers change in a cast from or to an integer type."""
    with np.errstate(all="ignore"):
        # A round trip; the sign catches wrap-around between int64 and uint64.
        bad = (result.astype(values.dtype) != values) | ((values < 0) != (result < 0))
        for floats, integers in ((values, result), (result, values)):
            if floats.dtype.kind == "f":
                # The cast of a float beyond an integer type depends on the processor, and may even round-trip.
                bounds, wide = np.iinfo(integers.dtype), floats.astype(np.float64)
                bad |= ~((wide >= float(bounds.min)) & (wide < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0)))
    return np.asarray(bad)


def _refuse(bad: Array, values: Array, target: str, field: ColumnPlan, locate: Locate, *, gaps: bool = False) -> None:
    if not bad.any():
        return
    # No type is wider than float64; what it cannot hold is an integer.
    advice = "Choose an integer type with dtype=, or leave this column out with columns=[...]."
    if target != "float64":
        advice = "Choose a wider type with dtype=."
    elif gaps:
        advice = "Integers with missing values become float64: pass missing='drop', or leave this column out with columns=[...]."
    elif field.is_shared:
        advice = "All series of wide=True share one type: pack large integers and floats separately (with columns=[...])."
    i = int(bad.argmax())
    where = locate(i)
    raise BadValueError(
        f"column {field.name!r} holds {values[i]} in {where}, which {target} cannot hold exactly. {advice}",
        parameter="dtype",
        column=field.name,
        **place_fields(where),
    )


def to_bfloat16(values: Array) -> Array:
    """The upper 16 bits of each float32, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype("<u2")


MAX_CATEGORIES = 1 << 20
MAX_TEXT_BYTES = 64 << 20


class Categories:
    """The distinct strings of a column, numbered as they first appear: the codes depend only on the order of the rows."""

    def __init__(self, name: str, texts: list[str] | None = None) -> None:
        self._name = name
        self._codes: dict[str, int] = {text: i for i, text in enumerate(texts or [])}
        self._num_bytes = sum(len(text) for text in self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, values: pa.Array, where: str) -> tuple[npt.NDArray[Any], list[str]]:
        """Codes of the values, and the strings that were new."""
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        # Other libraries use unsigned indices, which have no -1.
        indices = to_numpy(fill_null(values.indices.cast(pa.int64()), -1))
        # A dictionary may hold strings that no row uses: only those that occur get a code, in order of appearance.
        used, first = np.unique(indices[indices >= 0], return_index=True)
        used = used[np.argsort(first)]
        texts = values.dictionary.take(from_numpy(used)).to_pylist()
        new = [text for text in dict.fromkeys(texts) if text is not None and text not in self._codes]
        for text in new:
            self._codes[text] = len(self._codes)
            self._num_bytes += len(text)
        if len(self._codes) > MAX_CATEGORIES or self._num_bytes > MAX_TEXT_BYTES:
            raise SourceTooLargeError(
                f"column {self._name!r} has more than {min(len(self._codes), MAX_CATEGORIES):,} distinct strings at {where}. "
                "It is not a category: leave it out with columns=[...], or pass it as series=."
            )
        table = np.full(int(indices.max(initial=-1)) + 2, MISSING_CODE, dtype="<i4")
        table[used] = [MISSING_CODE if text is None else self._codes[text] for text in texts]
        return table[indices], new


def is_missing(values: Array) -> Array:
    """Which stored values mean missing: NaN, the smallest int64, code -1. (Of 16-bit types, only bfloat16 has one.)"""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    if values.dtype == np.uint16:
        return np.asarray(np.isnan(from_bfloat16(values)))
    return np.asarray(values == (MISSING_TIME if values.dtype == np.int64 else MISSING_CODE))


def fill_forward(values: Array, starts: Array, before: Any | None) -> Array:
    """Fill missing values with the last value before them in their series; those at the start of a series stay.

    `starts` are the rows where a series begins, `before` is the value ahead of row 0 if its series began earlier.
    """
    missing = is_missing(values)
    if not missing.any():
        return values
    source = np.where(missing, -1, np.arange(len(values)))
    source[starts] = starts
    source = np.maximum.accumulate(source)
    filled: Array = values[source]
    filled[source < 0] = values[source < 0] if before is None else before
    return filled


Key = int | str
_DAY = 86_400 * 10**9
_MAX_PASSES = 1 << 20


class HourPass(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far a series is in an hour that occurs twice, on one day: its last local time, and whether the second pass has begun."""

    key: Key
    day: int
    last: int
    is_second: bool
    first_row: str  # for the error, if there is no second pass


def to_local(times: Array, unit: str, zone: str) -> Array:
    """UTC times as local ones, int64 both."""
    local = pc.local_timestamp(pa.array(times).cast(pa.timestamp(unit, zone)))
    return to_numpy(local.view(pa.int64()))


def to_utc(times: Array, unit: str, zone: str, *, ambiguous: str = "earliest", nonexistent: str = "latest") -> Array:
    """Local times as UTC, int64 both, with the rules of `pyarrow.compute.assume_timezone`."""
    local = pa.array(times).cast(pa.timestamp(unit))
    return to_numpy(pc.assume_timezone(local, zone, ambiguous=ambiguous, nonexistent=nonexistent).view(pa.int64()))


class LocalTimes:
    """The rule for the local times of one zone, and the repeated hours seen so far."""

    def __init__(self, times: Time) -> None:
        self._name, self._zone = times.column, times.timezone or "UTC"
        self._ambiguous, self._nonexistent = times.ambiguous, times.nonexistent
        try:
            pc.assume_timezone(pa.array([0], pa.timestamp("ns")), self._zone)
        except (pa.ArrowException, ValueError, TypeError):
            raise OptionError(
                f"timezone is {self._zone!r}; expected a name like 'Europe/Berlin', 'UTC', or an offset like '+02:00'.",
                parameter="timezone",
            ) from None
        self._passes: dict[tuple[Key, int], HourPass] = {}

    def to_utc(self, times: Array, keys_of: Callable[[Array], list[Key]], locate: Locate) -> Array:
        """UTC nanoseconds of local ones. `keys_of` gives the series of some rows."""
        try:
            return to_utc(times, "ns", self._zone, ambiguous="raise", nonexistent="raise")
        except pa.ArrowInvalid:
            pass  # some time occurs twice, or never
        first = to_utc(times, "ns", self._zone)
        before = to_utc(times, "ns", self._zone, nonexistent="earliest")
        if self._nonexistent == "error" and (first != before).any():
            row = int((first != before).argmax())
            where = locate(row)
            raise BadValueError(
                f"the time {self._name!r} is {show_time(times[row])} in {where}, which does not exist in {self._zone}: clocks are "
                "set forward there. Fix the row, pass Time(nonexistent='shift') for the first time after it, or the zone of the times.",
                parameter="nonexistent",
                column=self._name,
                **place_fields(where),
            )
        last = to_utc(times, "ns", self._zone, ambiguous="latest")
        rows = np.flatnonzero(first != last)
        if self._ambiguous == "error" and len(rows):
            raise self._unresolved(show_time(times[rows[0]]), locate(int(rows[0])), "and ambiguous='error' refuses it")
        if self._ambiguous == "infer":
            first[rows] = np.where(self._second_passes(times[rows], keys_of(rows), rows, locate), last[rows], first[rows])
        elif self._ambiguous == "last":
            first = last
        return first

    def _second_passes(self, times: Array, keys: list[Key], rows: Array, locate: Locate) -> Array:
        """Whether each of these times, all of which occur twice, is the second."""
        is_second = np.zeros(len(times), dtype=bool)
        for i, (time, key) in enumerate(zip(times.tolist(), keys, strict=True)):
            seen = self._passes.get((key, time // _DAY))
            if seen is None:
                place = f"{show_time(times[i])} in {locate(int(rows[i]))}"
                seen = HourPass(key=key, day=time // _DAY, last=time, is_second=False, first_row=place)
                self._passes[key, time // _DAY] = seen
            else:
                seen.is_second |= time <= seen.last
                seen.last = time
            is_second[i] = seen.is_second
        if len(self._passes) > _MAX_PASSES:
            raise SourceTooLargeError(
                f"more than {_MAX_PASSES:,} series have times that occur twice in {self._zone}. Pass Time(ambiguous='first') or 'last'.",
                parameter="ambiguous",
            )
        return is_second

    def finish(self) -> None:
        """When all rows are read: a repeated hour that was passed once could be either."""
        for seen in self._passes.values():
            if not seen.is_second:
                what, _, where = seen.first_row.partition(" in ")
                raise self._unresolved(what, where, "and the rows of its series pass through that hour only once")

    def _unresolved(self, time: str, where: str, why: str) -> BadValueError:
        return BadValueError(
            f"the time {self._name!r} is {time} in {where}, which occurs twice in {self._zone} (clocks are set back), {why}. "
            "Pass Time(ambiguous='first') or 'last', or times with their offset.",
            parameter="ambiguous",
            column=self._name,
            **place_fields(where),
        )

    def mark(self) -> list[HourPass]:
        """The repeated hours so far, for the journal."""
        return [copy(seen) for seen in self._passes.values()]

    def restore(self, passes: list[HourPass]) -> None:
        """Continue from a journal."""
        self._passes = {(seen.key, seen.day): seen for seen in passes}


def show_time(time: Any, unit: str = "ns") -> str:
    """A stored time as text.

    Example:
        >>> show_time(3600, "s")
        '1970-01-01T01:00:00'
    """
    shown = str(np.array([time], dtype=np.int64).view(f"datetime64[{unit.partition(',')[0]}]")[0])
    return shown.removesuffix(".000000000")
