"""Local times become UTC: `LocalTimes`, with the hour that occurs twice when daylight saving ends, and the one that never occurs.

A local time that occurs twice is resolved by the order of the rows of its series: the first pass through the repeated hour is that
before the clock was set back, and where the time falls or repeats, the second begins. Such rows are few (one hour per year), so
they are handled one at a time. What was seen of them is the only state, and the journal of a pack keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import BadValueError, OptionError, SourceTooLargeError
from stoker.store.interop import to_numpy
from stoker.store.pack.options import Ambiguous, Nonexistent, PackOptions
from stoker.store.pack.values import Locate

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


def refuse_unknown_zone(zone: str) -> None:
    """Raise `OptionError` for a name that the database of time zones does not have."""
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("ns")), zone)
    except (pa.ArrowException, ValueError, TypeError):
        raise OptionError(
            f"timezone is {zone!r}; expected a name like 'Europe/Berlin', 'UTC', or an offset like '+02:00'."
        ) from None


def to_local(times: Array, unit: str, zone: str) -> Array:
    """UTC times as local ones, int64 both."""
    found = pc.local_timestamp(pa.array(times).cast(pa.timestamp(unit, zone)))
    return to_numpy(found.view(pa.int64()))


def to_utc(times: Array, unit: str, zone: str, *, ambiguous: str = "earliest", nonexistent: str = "latest") -> Array:
    """Local times as UTC, int64 both, with the rules of `pyarrow.compute.assume_timezone`."""
    local = pa.array(times).cast(pa.timestamp(unit))
    return to_numpy(pc.assume_timezone(local, zone, ambiguous=ambiguous, nonexistent=nonexistent).view(pa.int64()))


class LocalTimes:
    """The rule for the local times of one zone, and the repeated hours seen so far."""

    def __init__(self, name: str, zone: str, *, ambiguous: Ambiguous, nonexistent: Nonexistent) -> None:
        refuse_unknown_zone(zone)
        self._name, self._zone, self._ambiguous, self._nonexistent = name, zone, ambiguous, nonexistent
        self._passes: dict[tuple[Key, int], HourPass] = {}

    @classmethod
    def of(cls, options: PackOptions) -> LocalTimes:
        """The rule that options of a pack ask for."""
        return cls(options.time or "", options.timezone or "UTC", ambiguous=options.ambiguous, nonexistent=options.nonexistent)

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
            raise BadValueError(
                f"the time {self._name!r} is {show_time(times[row])} in {locate(row)}, which does not exist in {self._zone}: clocks are "
                "set forward there. Fix the row, pass nonexistent='shift' for the first time after it, or the zone that the times are in."
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
        found = np.zeros(len(times), dtype=bool)
        for i, (time, key) in enumerate(zip(times.tolist(), keys, strict=True)):
            seen = self._passes.get((key, time // _DAY))
            if seen is None:
                place = f"{show_time(times[i])} in {locate(int(rows[i]))}"
                seen = HourPass(key=key, day=time // _DAY, last=time, is_second=False, first_row=place)
                self._passes[key, time // _DAY] = seen
            else:
                seen.is_second |= time <= seen.last
                seen.last = time
            found[i] = seen.is_second
        if len(self._passes) > _MAX_PASSES:
            raise SourceTooLargeError(
                f"more than {_MAX_PASSES:,} series have times that occur twice in {self._zone}. Pass ambiguous='first' or 'last'."
            )
        return found

    def finish(self) -> None:
        """When all rows are read: a repeated hour that was passed once could be either."""
        for seen in self._passes.values():
            if not seen.is_second:
                what, _, where = seen.first_row.partition(" in ")
                raise self._unresolved(what, where, "and the rows of its series pass through that hour only once")

    def _unresolved(self, time: str, where: str, why: str) -> BadValueError:
        return BadValueError(
            f"the time {self._name!r} is {time} in {where}, which occurs twice in {self._zone} (clocks are set back), {why}. "
            "Pass ambiguous='first' or 'last', or times with their offset."
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
