"""Bins of columns: those of mostlyai-qa, value for value, and finer ones for the measures that it lacks.

Bins are made on the real data and applied to both. Numbers and times are cut at quantiles that are different values; of strings the
most frequent stay, the others are `(other)`. A missing value has a bin of its own. So a column becomes small integers, and every
measure is a count of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker._types import Array
from stoker.recipes.tabular.quality_tables import ColumnValues

NA, OTHER, EMPTY, RARE = "(n/a)", "(other)", "(empty)", "_RARE_"
MIN_ROWS = 5
"""A string in fewer rows has no bin of its own, because a report must not show values of single subjects."""
MOST_SIZES = 1000
MOST_DECIMALS = 20
DAY = 86_400 * 10**9
ALL_TIMES = (np.datetime64("1700-01-01", "ns").view(np.int64), np.datetime64("2200-01-01", "ns").view(np.int64))


@dataclass(frozen=True, kw_only=True)
class Bins:
    """How the values of one column become bins; the last bin is that of missing values."""

    labels: Sequence[str]
    edges: Array | None = None
    """Of numbers and times: bin i holds edges[i] <= value < edges[i + 1]; values outside are clipped."""
    places: Array | None = None
    """Of strings: the bin of each code, and behind them that of a missing one."""

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.labels)

    def apply(self, values: ColumnValues) -> Array:
        """The bin of each value, as uint8 or int32."""
        narrow = np.uint8 if self.size <= 256 else np.int32
        if self.places is not None:
            return self.places.astype(narrow)[values.data]  # code -1 is the last place
        assert self.edges is not None
        clipped = np.clip(values.data, self.edges[0], self.edges[-1])
        found = np.searchsorted(self.edges[:-1], clipped, side="right") - 1
        if values.kind == "number":  # above 2**53 the largest value is not below itself + 1, and has no bin
            found[~(clipped < self.edges[-1] + 1.0)] = self.size - 1
        found[values.missing] = self.size - 1
        return found.astype(narrow)


def find_bins(values: ColumnValues, count: int) -> Bins:
    """The bins of a column. Of strings that are equally frequent the one that comes first is kept, so the order of rows matters."""
    if values.kind == "category":
        return _string_bins(values, count)
    known = np.sort(values.data[~values.missing])
    edges = _time_edges(known, count) if values.kind == "time" else _number_edges(known, count)
    return Bins(labels=[*(f"≥ {one}" for one in _shown(edges, values.kind)), NA], edges=edges)


def quantile_bins(values: ColumnValues, count: int) -> Bins:
    """Up to `count` bins of about equal frequency; single values that are frequent have a bin of their own."""
    known = np.sort(values.data[~values.missing])
    if not len(known):
        return Bins(labels=["", NA], edges=np.asarray([0, 1], dtype=values.data.dtype))
    places = np.linspace(0, len(known) - 1, count + 1).astype(np.int64)
    edges = known[places]
    # A value that fills more than one bin ends its bin right behind itself.
    repeated = np.unique(edges[1:][edges[1:] == edges[:-1]])
    after = np.nextafter(repeated, np.inf) if values.kind == "number" else repeated + 1
    edges = np.unique(np.concatenate([edges, after, known[-1:]]))
    edges = np.append(edges, edges[-1] + 1) if len(edges) == 1 else edges
    return Bins(labels=[*_shown(edges, values.kind), NA], edges=edges)


def _number_edges(known: Array, count: int) -> Array:
    if not len(known):
        return np.array([-1e10, 1e10])
    changes = known[np.append(True, known[1:] != known[:-1])]
    edges = np.append(changes, changes[-1] + 1) if len(changes) <= count else _search(known, count)
    edges = np.unique(edges)
    for decimals in range(MOST_DECIMALS):  # the fewest that keep the edges apart
        scale = float(10**decimals)
        with np.errstate(over="ignore"):
            floors = np.floor(edges * scale) / scale
        if len(np.unique(floors)) == len(edges):
            return np.append(floors[:-1], edges[-1])
    return edges


def _time_edges(known: Array, count: int) -> Array:
    if not len(known):
        return np.array(ALL_TIMES)
    if known[0] == known[-1]:
        return np.array([known[0], known[0] + DAY])
    return _search(known, count)


def _search(known: Array, count: int) -> Array:
    """Sorted values at equal steps, more of them until `count` + 1 are different."""
    edges = known[:0]
    for size in range(count, max(count + 1, min(MOST_SIZES, len(known) + 1))):
        edges = np.unique(known[np.linspace(0, len(known) - 1, size).astype(int)])
        if len(edges) >= count + 1:
            break
    return edges


def _string_bins(values: ColumnValues, count: int) -> Bins:
    texts, missing = values.texts, len(values.texts)
    group = np.arange(missing + 1)
    empty, named_empty, named_missing = (_code(texts, text) for text in ("", EMPTY, NA))
    if empty is not None and named_empty is not None:
        group[named_empty] = empty
    if named_missing is not None:
        group[named_missing] = missing
    groups = group[values.data]
    counts = np.bincount(groups, minlength=missing + 1)
    first = np.zeros(missing + 1, dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    present = np.flatnonzero(counts)
    frequent = present[np.lexsort((first[present], -counts[present]))][:count]
    kept = {_label(texts, int(one)): int(one) for one in frequent[counts[frequent] >= MIN_ROWS]}
    last = (EMPTY, OTHER, RARE, NA)
    labels = [*sorted(label for label in kept if label not in last), *last]
    place = {label: i for i, label in enumerate(labels)}
    places = np.full(missing + 1, place[OTHER])
    for label, one in kept.items():
        places[one] = place[label]
    for text, label in (("", EMPTY), (EMPTY, EMPTY), (RARE, RARE), (NA, NA)):
        if (code := _code(texts, text)) is not None:
            places[code] = place[label]
    places[missing] = place[NA]
    return Bins(labels=labels, places=places)


def _code(texts: Sequence[str], text: str) -> int | None:
    place = bisect_left(texts, text)
    return place if place < len(texts) and texts[place] == text else None


def _label(texts: Sequence[str], group: int) -> str:
    return NA if group == len(texts) else texts[group] or EMPTY


def _shown(edges: Array, kind: str) -> list[str]:
    """The beginnings of bins; times of more than a day each without the hour."""
    if kind == "time":
        unit = "D" if (np.diff(edges) >= DAY).all() else "m"
        return [str(one).replace("T", " ") for one in edges[:-1].astype("M8[ns]").astype(f"M8[{unit}]")]
    return [f"{edge:,.6g}" for edge in edges[:-1]]


def is_text(values: ColumnValues) -> bool:
    """Whether more than 5 % of the strings occur once: text rather than categories."""
    if values.kind != "category":
        return False
    known = values.data[~values.missing]
    return bool(len(known)) and float(np.mean(np.bincount(known)[known] == 1)) > 0.05


def text_lengths(values: ColumnValues) -> ColumnValues:
    """The number of characters, which is what is compared of text."""
    sizes = np.append(np.array([len(text) for text in values.texts], dtype=np.float64), np.nan)
    return ColumnValues(name=values.name, kind="number", data=sizes[values.data])
