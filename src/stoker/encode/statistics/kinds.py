"""Limits: up to where statistics are exact. Parts can be joined only if they were analysed with the same ones."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.encode.statistics.columns import Form, Keys, State, float_keys, whole_keys
from stoker.encode.statistics.quantiles import GROUP, Distribution, Run, Sketch
from stoker.errors import OptionError, SourceInvalidError
from stoker.store.pack.plan import is_list, plain_type

EXACT = 1 << 20
CATEGORIES = 1 << 16


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many different values are kept."""

    exact: int = EXACT
    """Of a column of numbers or dates: up to so many different values its quantiles are exact; also the block of the sketch."""
    categories: int = CATEGORIES
    """Of a column of texts."""

    def check(self) -> None:
        """Raise `OptionError` for limits that cannot be meant."""
        for name, given in (("exact", self.exact), ("categories", self.categories)):
            if not isinstance(given, int) or isinstance(given, bool):
                raise OptionError(f"{name} is {given!r}, but a whole number is needed.")
        if self.exact < GROUP or self.exact % GROUP or self.exact > 1 << 40:
            raise OptionError(f"exact is {self.exact:,}, but a multiple of {GROUP} is needed, like {EXACT:,}.")
        if self.categories < 1:
            raise OptionError(f"categories is {self.categories:,}, but at least 1 text is kept.")


# Kinds: what the values of an Arrow type are taken for. A column of lists has the kind of what its lists hold.

Kind = Literal["number", "category", "date", "empty"]
Asked = Literal["number", "category", "date"]


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of one value: of what lists hold, and without ways of storing it."""
    value = plain_type(kind)
    return value.value_type if is_list(value) else value


def kind_of(name: str, kind: pa.DataType, asked: str | None, where: str) -> Kind:
    """The kind of a column; `asked` is what the user takes it for."""
    found = _natural_kind(kind)
    if found is None:
        raise SourceInvalidError(f"column {name!r} of {where} is {kind}, which has no statistics. Leave it out with `columns`.")
    if asked is not None and asked not in get_args(Asked):
        raise OptionError(f"kinds takes column {name!r} for {asked!r}; expected one of {', '.join(get_args(Asked))}.")
    if asked is None or asked == found or found == "empty":
        return found
    value = value_type(kind)
    number = pa.types.is_boolean(value) or pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    if found == "date" or asked == "date" or (asked == "number" and not number):
        raise OptionError(f"kinds takes column {name!r} of {where} for a {asked}, but it is {value}. Leave it out of kinds.")
    return "number" if asked == "number" else "category"


def _natural_kind(kind: pa.DataType) -> Kind | None:
    inner = kind.value_type if is_list(kind) else kind
    value = value_type(kind)
    if pa.types.is_null(value):
        return "empty"
    if pa.types.is_string(value) or pa.types.is_boolean(value) or (pa.types.is_dictionary(inner) and not pa.types.is_nested(value)):
        return "category"
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "date"
    number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    return "number" if number or pa.types.is_duration(value) or pa.types.is_time(value) else None


# States: distributions as bytes and back, so that parts can be analysed on different machines and joined later.

_WIDTHS = (1, 2, 4, 8)
_NOTHING = memoryview(b"")


def state_of(distribution: Distribution) -> State:
    """The values of a distribution, or its sketch, as bytes."""
    sketch = distribution.sketch
    run = distribution.run if sketch is None else sketch.open
    levels = [] if sketch is None else [_NOTHING if level is None else _bytes(level, "<u8") for level in sketch.levels]
    width = 0 if run.once else _width(int(run.counts.max()))
    return State(keys=_bytes(run.keys, "<u8"), counts=_bytes(run.counts, f"<u{width}") if width else _NOTHING, levels=levels)


def distribution_of(state: State, limit: int) -> Distribution:
    """The distribution of a state; the smallest and largest value of a sketch are not in it."""
    keys = np.frombuffer(state.keys, dtype="<u8").astype(np.uint64)
    counts = _counts(state)
    distribution = Distribution(limit)
    if not state.levels:
        distribution.add(Run(keys, counts))
        return distribution
    distribution.sketch = sketch = Sketch(limit)
    sketch.open = Run(keys, counts)
    sketch.levels = [np.frombuffer(level, dtype="<u8").astype(np.uint64) if level else None for level in state.levels]
    return distribution


def fault_in(state: State, *, num_values: int, limit: int) -> tuple[str, str, str] | None:
    """What makes a state impossible: the field, what it should be, and what it is."""
    if len(state.keys) % 8:
        return "keys", "whole numbers of 8 bytes", f"{len(state.keys):,} bytes"
    keys = np.frombuffer(state.keys, dtype="<u8")
    if state.counts and len(state.counts) not in [len(keys) * width for width in _WIDTHS]:
        return "counts", f"1, 2, 4 or 8 bytes for each of {len(keys):,} keys, or none", f"{len(state.counts):,} bytes"
    counts = _counts(state)
    if not (keys[1:] > keys[:-1]).all():
        return "keys", "ascending keys", "others"
    if (counts < 1).any():
        return "counts", "at least 1 each", str(counts.min())
    total = int(counts.sum())
    for i, level in enumerate(state.levels):
        found = np.frombuffer(level, dtype="<u8") if len(level) % 8 == 0 else np.empty(0)
        if level and (len(found) != limit // GROUP or not (found[1:] >= found[:-1]).all()):
            return f"levels[{i}]", f"{limit // GROUP:,} ascending keys", f"{len(level):,} bytes"
        total += limit << i if level else 0
    if state.levels and not state.levels[-1]:
        return "levels", "no empty level at the end", "one"
    if state.num_keys is not None:
        if state.levels or len(state.num_keys) != 8 * len(keys):
            return "num_keys", f"8 bytes for each of {len(keys):,} keys and no levels", f"{len(state.num_keys):,} bytes"
        if not (np.frombuffer(state.num_keys, dtype="<u8") <= num_values).all():
            return "num_keys", f"at most {num_values:,} each", "more"
    if total != num_values:
        return "counts", f"{num_values:,} values in all", f"{total:,}"
    if len(keys) > limit:
        return "keys", f"at most {limit:,} keys", f"{len(keys):,}"
    return None


def counted_by_key(state: State) -> Run | None:
    """The values of a state with how many keys have each; None where that is not known."""
    if state.num_keys is None:
        return None
    counts = np.frombuffer(state.num_keys, dtype="<u8").astype(np.int64)
    return Run(np.frombuffer(state.keys, dtype="<u8").astype(np.uint64), counts)


def with_counts_by_key(state: State, counts: npt.NDArray[np.int64] | None) -> State:
    """The same values, with how many keys have each."""
    return msgspec.structs.replace(state, num_keys=None if counts is None else memoryview(counts.astype("<u8").tobytes()))


def _counts(state: State) -> npt.NDArray[np.int64]:
    num_keys = len(state.keys) // 8
    if not state.counts:
        return np.ones(num_keys, dtype=np.int64)
    return np.frombuffer(state.counts, dtype=f"<u{len(state.counts) // num_keys}").astype(np.int64)


def _width(count: int) -> int:
    """Bytes that a count needs."""
    return next(width for width in _WIDTHS if count < 1 << 8 * width)


def _bytes(values: Any, dtype: str) -> memoryview:
    """Numbers as bytes; where they are so already, they are shared."""
    return memoryview(np.ascontiguousarray(values, dtype=dtype).view(np.uint8)) if len(values) else _NOTHING


# Waiting: keys are collected until there are enough of them to be worth a sort.

ENOUGH = 1 << 18


class Waiting:
    """Keys that have come in and are not sorted yet; arrays that are given become its own."""

    def __init__(self) -> None:
        self._arrays: list[Keys] = []
        self._num_keys = 0

    def add(self, keys: Keys) -> Run | None:
        """Take in keys; returns all that have waited as a run, once they are enough."""
        if len(keys):
            self._arrays.append(keys)
            self._num_keys += len(keys)
        return self.flush() if self._num_keys >= ENOUGH else None

    def flush(self) -> Run:
        """All that have waited."""
        arrays, self._arrays, self._num_keys = self._arrays, [], 0
        if not arrays:
            return Run.empty()
        return Run.of(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


# Extremes: the smallest and the largest values, a thousand of each, which rare-value protection draws its limits from.

NUM_EXTREMES = 1000


class Extremes:
    """Keys in ascending order: the `smallest`, and the `largest`; a value that occurs twice is there twice."""

    def __init__(self, smallest: Keys | None = None, largest: Keys | None = None) -> None:
        none = np.empty(0, dtype=np.uint64)
        self.smallest = none if smallest is None else smallest
        self.largest = none if largest is None else largest

    @staticmethod
    def of(run: Run) -> Extremes:
        """Those of a run."""
        first = Run(run.keys[:NUM_EXTREMES], run.counts[:NUM_EXTREMES])
        last = Run(run.keys[-NUM_EXTREMES:], run.counts[-NUM_EXTREMES:])
        num_first, num_last = first.num_values, last.num_values
        return Extremes(
            first.at(np.arange(min(num_first, NUM_EXTREMES))), last.at(np.arange(max(num_last - NUM_EXTREMES, 0), num_last))
        )

    def merge(self, other: Extremes) -> None:
        """Take in other extremes."""
        self.smallest = np.sort(np.concatenate([self.smallest, other.smallest]))[:NUM_EXTREMES]
        self.largest = np.sort(np.concatenate([self.largest, other.largest]))[-NUM_EXTREMES:]


# Histogram: how many values lie between powers of two, on both sides of zero: 128 counts for numbers of any size.

NUM_BINS = 128

EDGES = (*(-(2.0**i) for i in range(63, -1, -1)), 0.0, *(2.0**i for i in range(64)))
"""-2**63 ... -2, -1, 0, 1, 2 ... 2**63; a bin begins with its edge, and the first and last hold what lies beyond."""

_BOUNDS = {"int": (-(2**63), 2**63 - 1, np.int64), "uint": (0, 2**64 - 1, np.uint64)}


def log_histogram(run: Run, form: Form) -> npt.NDArray[np.int64]:
    """The counts of a run; whole numbers count as the float64 that is nearest to them."""
    begins = run.before(np.searchsorted(run.keys, _first_keys(form)))
    return np.diff(begins, prepend=0, append=run.num_values)


@cache
def _first_keys(form: Form) -> Keys:
    """The first key of each bin but the first one."""
    inner = EDGES[1:-1]
    if form == "float":
        return float_keys(np.array([-0.0 if edge == 0 else edge for edge in inner]))[0]
    low, high, dtype = _BOUNDS[form]
    return whole_keys(np.array([_first_at(edge, low, high) for edge in inner], dtype=dtype))


def _first_at(edge: float, low: int, high: int) -> Any:
    """The least whole number that is at least `edge` once it is a float64."""
    while low < high:
        middle = (low + high) // 2
        if float(middle) >= edge:
            high = middle
        else:
            low = middle + 1
    return low
