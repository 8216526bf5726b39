"""Statistics of tables as `analyze` of mostlyai-engine writes them to stats.json.

    part_of_column     what a partition says of a column: counts, extremes, quantiles, digits, parts of dates
    reduce_column      the parts of all partitions as an entry of stats.json: codes, bins, ranges, cardinalities
    reduce_lengths     the range of lengths

The limits of rare values are drawn from `np.random`, in the same order as there: equal seeds give equal files. Targets are protected by
row, as there, and not by subject.
Relative dates differ where they are wrong there: they have hours if any of them has, not only if a first one has, and a gap of 0 where
dates are missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.compat.codes import ESCAPE, NULL, relative_parts
from stoker_recipes.tabular.encodings import RARE
from stoker_recipes.tabular.values import Values, read_values

LEAST_VALUES = 20
"""With fewer values all of them are rare."""
LEAST_COUNT = 5
MOST_DISCRETE, MOST_DIGITS = 0.999, 3
MOST_BINS, MOST_QUANTILES = 100, 1000
NUMBERS = {
    "TABULAR_NUMERIC_AUTO": "auto", "TABULAR_NUMERIC_DIGIT": "digit", "TABULAR_NUMERIC_DISCRETE": "discrete",
    "TABULAR_NUMERIC_BINNED": "binned",
}  # fmt: skip
MILLIS = ("ms_E2", "ms_E1", "ms_E0")
Partial = dict[str, Any]


def draw_limit() -> int:
    """The number of rows below which a value is rare: 0 to 2 more than `LEAST_COUNT`."""
    return LEAST_COUNT + int(3 * np.random.uniform())


# ---- one partition ----


def part_of_column(kind: str, column: pa.Array, starts: Array) -> Partial:
    """What a partition says of a column.

    Args:
        kind: Its encoding, such as "TABULAR_DATETIME".
        column: The column, as `workspace.read_column` has it.
        starts: The first row of each subject.
    """
    if kind in NUMBERS:
        column_of: Any = analyze({"x": column}, kinds={"x": "number"}, threads=1)["x"]
        analysis = column_of.analysis(NUMBERS[kind])
        return dict(
            json.loads(json.dumps(analysis, default=lambda number: number.item()))
        )  # the values that are counted become strings
    if kind == "TABULAR_DATETIME":
        return dict(analyze({"x": column}, threads=1)["x"].analysis())
    values = read_values("", column)
    if kind == "TABULAR_DATETIME_RELATIVE":
        return _part_of_relative(column, values, starts)
    counts = np.bincount(values.data[values.valid], minlength=len(values.words)).tolist()
    words = [ESCAPE + word if word.startswith(ESCAPE) or word in (RARE, NULL) else word for word in values.words.to_pylist()]
    return {"has_nan": not values.valid.all(), "cnt_values": {word: n for word, n in zip(words, counts, strict=True) if n}}


def _part_of_relative(column: pa.Array, values: Values, starts: Array) -> Partial:
    parts = relative_parts(values, starts)
    dates = analyze({"x": column}, threads=1)["x"].analysis()
    later = np.ones(len(values), bool)  # those without a date have a gap of 0, which must be a class
    later[starts[starts < len(later)]] = False
    least, most = {}, {}
    for name, part in parts.items():
        present = part[later if name.startswith("itt_") else values.valid]
        if name not in ("nan", "itt_neg"):
            least[name], most[name] = (int(present.min()), int(present.max())) if len(present) else (0, 0)
    if not values.valid.any():
        both = dict.fromkeys(least, 0) | {"start_year": 2022, "start_month": 1, "start_day": 1}
        least, most = both, dict(both)
    flags = {"has_nan": not values.valid.all(), "has_neg": bool(parts["itt_neg"].any())}
    return flags | {"min_values": least, "max_values": most, "min_n": dates["min_n"], "max_n": dates["max_n"]}


# ---- all partitions ----


def reduce_column(kind: str, parts: Sequence[Partial], *, protect: bool) -> dict[str, Any]:
    """The entry of a column, of the parts of all partitions that have rows."""
    if kind in NUMBERS:
        reduced = _reduce_numbers(kind, parts, protect)
    elif kind in ("TABULAR_DATETIME", "TABULAR_DATETIME_RELATIVE"):
        reduced = _reduce_dates(kind, parts, protect)
    else:
        reduced = _reduce_categories(parts, protect)
    entry = {"encoding_type": kind} | reduced
    return entry if kind == "TABULAR_NUMERIC_AUTO" else {"value_protection": protect} | entry


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in counts:
        for value, count in part.items():
            total[value] = total.get(value, 0) + count
    return total


def _numbered(values: Sequence[str]) -> dict[str, int]:
    return {value: code for code, value in enumerate(values)}


def _has_nan(parts: Sequence[Partial]) -> bool:
    return any(part["has_nan"] for part in parts)


def _reduce_categories(parts: Sequence[Partial], protect: bool) -> dict[str, Any]:
    counts = dict(sorted(_added([part["cnt_values"] for part in parts]).items()))
    least = draw_limit() if protect else 0
    frequent = [value for value, count in counts.items() if count >= least]
    codes = _numbered([RARE, *([NULL] if _has_nan(parts) else []), *frequent])
    return {"no_of_rare_categories": len(counts) - len(frequent), "codes": codes, "cardinalities": {"cat": len(codes)}}


def _range(parts: Sequence[Partial], protect: bool) -> tuple[Any, Any]:
    """The smallest and the largest value that may be kept."""
    lows = sorted(value for part in parts for value in part["min_n"])
    highs = sorted((value for part in parts for value in part["max_n"]), reverse=True)
    if not protect:
        return (lows[0], highs[0]) if lows else (None, None)
    if len(lows) < LEAST_VALUES or len(highs) < LEAST_VALUES:
        return None, None
    return lows[draw_limit()], highs[draw_limit()]


def _reduce_numbers(kind: str, parts: Sequence[Partial], protect: bool) -> dict[str, Any]:
    has_nan = _has_nan(parts)
    places = sorted({place for part in parts for place in part["max_digits"]}, key=lambda place: -int(place[1:]))
    least = {place: min(part["min_digits"].get(place, 0) for part in parts) for place in places}
    most = {place: max(part["max_digits"].get(place, 0) for part in parts) for place in places}
    used = [int(place[1:]) for place in places if most[place] > 0]
    lowest = min(used, default=0)
    low, high = _range(parts, protect)
    largest = 0.0 if low is None else max(abs(low), abs(high))
    highest = min(max(lowest, math.floor(math.log10(largest)) if largest >= 10 else 0), int(places[0][1:]))
    categories, share = _frequent(parts, protect)
    if kind == "TABULAR_NUMERIC_AUTO":
        few = len(used) <= MOST_DIGITS
        kind = f"TABULAR_NUMERIC_{'DISCRETE' if share > MOST_DISCRETE else 'DIGIT' if few else 'BINNED'}"
    if kind == "TABULAR_NUMERIC_DISCRETE":
        known = [value.split(".")[0] for value in categories] if lowest >= 0 else categories
        tokens = [RARE, *([NULL] if has_nan else []), *known]
        return {
            "encoding_type": kind, "cardinalities": {"cat": len(tokens)}, "codes": _numbered(tokens), "min_decimal": lowest,
        }  # fmt: skip
    if kind == "TABULAR_NUMERIC_DIGIT":
        has_neg = any(part["has_neg"] for part in parts)
        flags = ({"nan": 2} if has_nan else {}) | ({"neg": 2} if has_neg else {})
        digits = {f"E{place}": most[f"E{place}"] + 1 - least[f"E{place}"] for place in range(highest, lowest - 1, -1)}
        return {
            "encoding_type": kind, "cardinalities": flags | digits, "has_nan": has_nan, "has_neg": has_neg, "min_digits": least,
            "max_digits": most, "max_decimal": highest, "min_decimal": lowest, "min": low, "max": high,
        }  # fmt: skip
    bins: list[float] = [0]
    ends: list[str] = []
    if low is not None:
        quantiles = np.concatenate([part["quantiles"] for part in parts if part["quantiles"]])
        bins, ends = find_bins(np.clip(quantiles, low, high)), ["<<MIN>>", "<<MAX>>"]
    codes = _numbered(["<<UNK>>", *([NULL] if has_nan else []), *ends])
    return {
        "encoding_type": kind, "cardinalities": {"bin": len(codes) + len(bins) - 1}, "codes": codes,
        "min_decimal": lowest if low is not None else 0, "bins": bins,
    }  # fmt: skip


def _frequent(parts: Sequence[Partial], protect: bool) -> tuple[list[str], float]:
    """The numbers that are not rare, and the share of rows that have one; none where a partition has too many to count."""
    if not all(part["cnt_values"] for part in parts):
        return [], 0.0
    counts = _added([part["cnt_values"] for part in parts])
    least = draw_limit() if protect else 0
    frequent = {value: count for value, count in counts.items() if count >= least}
    return list(frequent), sum(frequent.values()) / sum(counts.values())


def find_bins(values: Array) -> list[float]:
    """Up to 101 distinct edges between quantiles; the number of quantiles grows until there are 101."""
    edges = np.unique(values)
    count = MOST_BINS
    while len(values) > MOST_BINS and len(np.unique(values)) > MOST_BINS and count <= MOST_QUANTILES:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1), method="closest_observation"))
        if len(edges) > MOST_BINS:
            half = MOST_BINS // 2
            return [*edges[: half + 1].tolist(), *edges[-half:].tolist()] if len(edges) > MOST_BINS + 1 else edges.tolist()
        count += 1 + max(0, MOST_BINS - len(edges))
    return list(edges.tolist())


def _extremes(parts: Sequence[Partial]) -> tuple[dict[str, int], dict[str, int]]:
    names = parts[0]["min_values"]
    least = {name: min(part["min_values"][name] for part in parts) for name in names}
    return least, {name: max(part["max_values"][name] for part in parts) for name in names}


def _has_any(most: Mapping[str, int], names: Sequence[str]) -> bool:
    return any(most[name] > 0 for name in names)


def _reduce_dates(kind: str, parts: Sequence[Partial], protect: bool) -> dict[str, Any]:
    is_relative = kind == "TABULAR_DATETIME_RELATIVE"
    least, most = _extremes(parts)
    low, high = _range(parts, protect)
    clock, start = ("hour", "minute", "second"), "start_" if is_relative else ""
    # Hours of later events count too: otherwise they would be lost where all sequences begin at midnight.
    clocks = [f"{begin}{name}" for begin in ((start, "itt_") if is_relative else (start,)) for name in clock]
    is_hidden = protect and low is None
    has_time = _has_any(most, clocks) and not is_hidden
    has_ms = not is_relative and has_time and _has_any(most, MILLIS)
    if protect and not is_hidden:
        least[f"{start}year"], most[f"{start}year"] = int(low[:4]), int(high[:4])
    times, flags = clock if has_time else (), {"has_nan": _has_nan(parts)}
    names = [f"{start}{name}" for name in ("year", "month", "day", *times)] + (list(MILLIS) if has_ms else [])
    sizes = ({"nan": 2} if flags["has_nan"] else {}) | {name: most[name] + 1 - least[name] for name in names}
    if is_relative:
        flags["has_neg"] = any(part["has_neg"] for part in parts)
        gaps = [f"itt_{name}" for name in ("week", "day", *times)]
        sizes |= ({"itt_neg": 2} if flags["has_neg"] else {}) | {name: most[name] + 1 - least[name] for name in gaps}
    flags |= {"has_time": has_time} | ({} if is_relative else {"has_ms": has_ms})
    return {"cardinalities": sizes} | flags | {"min_values": least, "max_values": most, "min": low, "max": high}


def reduce_lengths(lengths: Array, *, protect: bool) -> dict[str, Any]:
    """The range of the lengths of sequences.

    Raises:
        OptionError: There are too few subjects to protect their lengths and values.
    """
    ordered = np.sort(lengths)
    if protect and len(ordered) >= LEAST_VALUES:
        first = draw_limit()
        ordered = ordered[first : -draw_limit()]
    elif protect:
        raise OptionError(
            f"the data has {len(ordered)} subjects; protection needs at least {LEAST_VALUES}, because every value of fewer is rare. "
            "Pass value_protection=False to keep all values."
        )
    reduced = {"min": int(ordered.min()), "max": int(ordered.max()), "median": int(np.median(ordered))}
    return reduced | {"value_protection": protect}
