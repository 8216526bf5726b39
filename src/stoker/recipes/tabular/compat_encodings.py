"""Encodings of dates, characters and places as mostlyai-engine has them, and `encoding_of`: an encoding from an entry of its stats.json.

    DatetimeParts    nan, year, month, day [, hour, minute, second [, ms_E2, ms_E1, ms_E0]]
    RelativeParts    nan, start_year, ..., start_second of the first date; itt_neg, itt_week, ..., itt_second since the event before
    Characters       nan, P0, P1, ...        one class per character; class 0 is a rare one, and the end
    QuadTiles        QUAD12, ..., QUAD26, P0, ..., P29, nan    the path of a place through a quadtree, and its beginnings

Codes are those of mostlyai-engine for the same statistics. Where a value is missing they are 0; `compat.encode` fills them as
mostlyai-engine does, from random other values. Two things differ, because there they are wrong: a missing date is filled from the
same subject only, and a relative date is decoded from all events of a subject at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import OptionError
from stoker.recipes.tabular.compat_numbers import Binned, Digit
from stoker.recipes.tabular.dates import first_valid, join_date, split_date
from stoker.recipes.tabular.encodings import RARE, Categorical, Encoding, code_points
from stoker.recipes.tabular.values import Values, to_column, to_words

NULL, MINIMUM = "<<NULL>>", "<<MIN>>"
ESCAPE = "\x01"
SECOND, DAY = 10**6, 86_400 * 10**6
"""In microseconds, as all dates are here."""
DATE, TIME, MILLIS = ("year", "month", "day"), ("hour", "minute", "second"), ("ms_E2", "ms_E1", "ms_E0")
ITT = {"week": 7 * 86_400, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
"""Seconds of the parts of a gap."""
TILE_PLACES = 28
PLACES_PER_DEGREE = 100_000
QUADS = range(12, 28, 2)
SIGNS = 2


def _split(data: Array) -> dict[str, Array]:
    parts = split_date(data, "us")
    millis = parts["milli"]
    return parts | {"ms_E2": millis // 100, "ms_E1": millis // 10 % 10, "ms_E0": millis % 10}


def _join(parts: Mapping[str, Array]) -> Array:
    none = np.zeros_like(parts["year"])
    millis = sum((parts.get(name, none) * scale for name, scale in zip(MILLIS, (100, 10, 1), strict=True)), none)
    clock = {name: parts.get(name, none) for name in TIME}
    return join_date({**{name: parts[name] for name in DATE}, **clock, "milli": millis, "micro": none}, "us")


class _DateParts(Encoding, frozen=True, kw_only=True):
    """Dates in parts, each counted from the smallest."""

    counts: dict[str, int]
    """The number of classes of each sub-column."""
    lows: dict[str, int]
    """The smallest value of each part."""
    low: int | None
    high: int | None
    """The range of dates, or of first dates, in microseconds; None where no date may be kept."""

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return self.counts

    @property
    def has_null(self) -> bool:
        """Whether values are missing."""
        return "nan" in self.counts


class DatetimeParts(_DateParts, frozen=True, kw_only=True, tag="datetime_parts"):
    """The parts of a date, each counted from the smallest; down to milliseconds."""

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        found = _split(values.data if self.low is None else np.clip(values.data, self.low, self.high))
        columns = [
            ~values.valid if name == "nan" else np.where(values.valid, np.clip(found[name] - self.lows[name], 0, size - 1), 0)
            for name, size in self.counts.items()
        ]
        return np.stack(columns, 1).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        given = dict(zip(self.counts, codes.T, strict=True))
        valid = given["nan"] == 0 if "nan" in given else np.ones(len(codes), bool)
        data = _join({name: given[name] + self.lows[name] for name in given if name != "nan"})
        if self.low is not None and self.high is not None:
            unit = 1 if "ms_E0" in given else SECOND if "hour" in given else DAY
            data = np.clip(data, self.low // unit * unit, self.high // unit * unit)
        elif "nan" in given:
            valid = np.zeros(len(codes), bool)
        return to_column(np.where(valid, data, 0), valid, kind)


class RelativeParts(_DateParts, frozen=True, kw_only=True, tag="relative_parts"):
    """The parts of the first date of a subject, on all its events, and the whole seconds since the event before, in parts."""

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        found = relative_parts(values, starts)
        columns = [
            found[name] if name in ("nan", "itt_neg") else np.clip(found[name] - self.lows[name], 0, size - 1)
            for name, size in self.counts.items()
        ]
        return np.stack(columns, 1).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        given = dict(zip(self.counts, codes.T, strict=True))
        valid = given["nan"] == 0 if "nan" in given else np.ones(len(codes), bool)
        parts = {name: given[name] + low for name, low in self.lows.items() if name in given}
        begin = _join({name.removeprefix("start_"): part for name, part in parts.items() if name.startswith("start_")})
        if self.low is not None and self.high is not None:
            begin = np.clip(begin, self.low, self.high)
        seconds = sum((parts[f"itt_{name}"] * scale for name, scale in ITT.items() if f"itt_{name}" in parts), np.zeros_like(begin))
        if "itt_neg" in given:
            seconds = np.where(given["itt_neg"] == 1, -seconds, seconds)
        # A running sum over all rows; a subject's own is the difference to its first event.
        lengths = np.diff(np.append(starts, len(codes)))
        first = np.repeat(starts, lengths)
        total = np.cumsum(np.where(np.arange(len(codes)) == first, 0, seconds))
        data = begin[first] + (total - total[first]) * SECOND
        if "start_hour" not in given:
            data = data // DAY * DAY
        return to_column(np.where(valid, data, 0), valid, kind)


def relative_parts(values: Values, starts: Array) -> dict[str, Array]:
    """All parts of relative dates: the first date of each subject, and the seconds since the date before.

    A missing date is that of the event before, or else the first one of the subject. A subject without any has the smallest date.
    """
    rows = np.arange(len(values))
    lengths = np.diff(np.append(starts, len(values)))
    first = np.repeat(starts, lengths)
    last = np.maximum.accumulate(np.where(values.valid, rows, -1)) if len(rows) else rows
    begins = np.full(len(starts), values.data[values.valid].min() if values.valid.any() else 0)
    own = first_valid(values.valid, starts)
    begins[np.repeat(np.arange(len(starts)), lengths)[own]] = values.data[own]
    begin = np.repeat(begins, lengths)
    dates = np.where(last >= first, values.data[np.maximum(last, 0)], begin) if len(rows) else values.data
    millis = np.floor_divide(np.diff(dates, prepend=0), 1000)
    millis[starts[lengths > 0]] = 0
    seconds, found = np.abs(millis) // 1000, {"nan": (~values.valid).astype(np.int64)}
    found |= {f"start_{name}": part for name, part in _split(begin).items() if name in DATE + TIME}
    found["itt_neg"] = (millis < 0).astype(np.int64)
    for name, scale in ITT.items():
        found[f"itt_{name}"] = seconds // scale
        seconds = seconds % scale
    return found


class Characters(Encoding, frozen=True, kw_only=True, tag="characters"):
    """One sub-column per place. Class 0 is a rare character, or none; then the kept ones, sorted."""

    alphabets: list[str]
    """The kept characters of each place."""
    has_null: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return ({"nan": 2} if self.has_null else {}) | {f"P{place}": 1 + len(one) for place, one in enumerate(self.alphabets)}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        points = code_points(values.words.to_pylist(), len(self.alphabets))
        codes = np.zeros((len(points) + 1, len(self.alphabets)), np.int64)
        for place, letters in enumerate(self.alphabets):
            known = np.array([0, *map(ord, letters)])
            at = np.minimum(np.searchsorted(known, points[:, place]), len(known) - 1)
            codes[:-1, place] = np.where(known[at] == points[:, place], at, 0)
        rows = codes[np.where(values.valid, values.data, -1)]
        return np.column_stack([~values.valid, rows]).astype(np.int64) if self.has_null else rows

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        text = np.full(len(codes), "", dtype=object)
        for place, letters in enumerate(self.alphabets):
            text = text + np.array(["", *letters], object)[codes[:, place + self.has_null]]
        pairs = zip(text.tolist(), valid.tolist(), strict=True)
        return to_words([word.rstrip() if there and self.alphabets else None for word, there in pairs], kind)


class QuadTiles(Encoding, frozen=True, kw_only=True, tag="quad_tiles"):
    """The signs and the binary places of latitude and longitude: A 00, B 10, C 01, D 11; and categories of common beginnings."""

    quads: dict[str, list[str]]
    """The kept beginnings by their number of places; class 0 is any other."""
    symbols: list[str]
    """The symbols of each place, in the order of their classes."""
    has_null: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        quads = {name: 1 + len(kept) for name, kept in self.quads.items()}
        return quads | {f"P{place}": len(one) for place, one in enumerate(self.symbols)} | ({"nan": 2} if self.has_null else {})

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        tiles = tiles_of(values.words.to_pylist())
        table = np.zeros((len(tiles) + 1, len(self.sizes)), np.int64)
        for number, name in enumerate(self.quads):
            place = {one: code for code, one in enumerate(self.quads[name], 1)}
            table[:-1, number] = [0 if tile is None else place.get(tile[: SIGNS + int(name[4:])], 0) for tile in tiles]
        for number, symbols in enumerate(self.symbols):
            table[:-1, len(self.quads) + number] = [0 if tile is None else max(0, symbols.find(tile[number])) for tile in tiles]
        if self.has_null:
            table[:, -1] = [*(tile is None for tile in tiles), True]
        return np.asarray(table[np.where(values.valid, values.data, -1)])

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        places = codes[:, len(self.quads) : len(self.quads) + len(self.symbols)]
        found = np.stack([np.array([*symbols])[places[:, at]] for at, symbols in enumerate(self.symbols)], 1)
        signs = np.where(found[:, :SIGNS] == "-", -1, 1)
        weights = 2 ** np.arange(TILE_PLACES - 1, -1, -1)
        bits = [np.isin(found[:, SIGNS:], known) @ weights for known in (["B", "D"], ["C", "D"])]
        numbers = np.stack(bits, 1) * signs / PLACES_PER_DEGREE
        valid = codes[:, -1] == 0 if self.has_null else np.ones(len(codes), bool)
        pairs = zip(numbers.tolist(), valid.tolist(), strict=True)
        return to_words([f"{lat:.5f}, {lon:.5f}" if there else None for (lat, lon), there in pairs], kind)


def tiles_of(words: list[str]) -> list[str | None]:
    """The path of each place through the quadtree, behind its two signs; None where a string has no two numbers."""
    wide = np.full((len(words), 2), np.nan)
    for row, word in enumerate(words):
        for side, part in enumerate(f"{word},".split(",")[:2]):
            try:
                wide[row, side] = float(part)
            except ValueError:
                break
    with np.errstate(over="ignore"):
        numbers = wide.astype(np.float32)
    is_place = np.asarray(np.isfinite(numbers).all(1))
    whole = (np.where(is_place[:, None], numbers, 0) * np.float32(PLACES_PER_DEGREE)).astype(np.int64)
    signs = np.where(whole >= 0, "+", "-")
    whole = np.minimum(np.abs(whole), np.array([90, 180]) * PLACES_PER_DEGREE)
    bits = (whole[:, :, None] >> np.arange(TILE_PLACES - 1, -1, -1)) & 1
    symbols = np.array(["A", "B", "C", "D"])[bits[:, 0] + 2 * bits[:, 1]]
    rows = np.concatenate([signs, symbols], 1)
    return ["".join(row) if there else None for row, there in zip(rows.tolist(), is_place.tolist(), strict=True)]


def micros_of(text: str | None) -> int | None:
    """The microseconds of a date in a stats.json."""
    return None if text is None else int(np.datetime64(text.replace(" ", "T"), "us").astype(np.int64))


def encoding_of(stats: Mapping[str, Any]) -> Categorical | Digit | Binned | DatetimeParts | RelativeParts | Characters | QuadTiles:
    """The encoding of a column, from its entry in the stats.json of mostlyai-engine.

    Args:
        stats: The entry: `json.load(file)["columns"][name]`.

    Raises:
        OptionError: Its kind is none of the TABULAR_ ones.

    Example:
        >>> encoding_of({"encoding_type": "TABULAR_CATEGORICAL", "codes": {"_RARE_": 0, "a": 1}, "no_of_rare_categories": 0}).values
        ['a']
    """
    kind = str(getattr(stats["encoding_type"], "value", stats["encoding_type"]))
    if kind in ("TABULAR_CATEGORICAL", "TABULAR_NUMERIC_DISCRETE"):
        return _categorical(stats, is_number=kind == "TABULAR_NUMERIC_DISCRETE")
    if kind == "TABULAR_NUMERIC_DIGIT":
        places = range(stats["max_decimal"], stats["min_decimal"] - 1, -1)
        return Digit(
            highest=stats["max_decimal"],
            lows=[stats["min_digits"][f"E{place}"] for place in places],
            highs=[stats["max_digits"][f"E{place}"] for place in places],
            low=-math.inf if stats["min"] is None else float(stats["min"]),
            high=math.inf if stats["max"] is None else float(stats["max"]),
            has_null=stats["has_nan"],
            has_negative=stats["has_neg"],
        )
    if kind == "TABULAR_NUMERIC_BINNED":
        tokens, edges = stats["codes"], list(map(float, stats["bins"]))
        return Binned(edges=edges, decimals=-stats["min_decimal"], has_null=NULL in tokens, has_ends=MINIMUM in tokens)
    if kind in ("TABULAR_DATETIME", "TABULAR_DATETIME_RELATIVE"):
        of_parts = DatetimeParts if kind == "TABULAR_DATETIME" else RelativeParts
        low, high = micros_of(stats["min"]), micros_of(stats["max"])
        return of_parts(counts=dict(stats["cardinalities"]), lows=dict(stats["min_values"]), low=low, high=high)
    if kind == "TABULAR_CHARACTER":
        return Characters(alphabets=["".join(list(one)[1:]) for one in stats["codes"].values()], has_null=stats["has_nan"])
    if kind == "TABULAR_LAT_LONG":
        return QuadTiles(
            quads={name: list(codes)[1:] for name, codes in stats["quad_codes"].items()},
            symbols=["".join(codes) for codes in stats["quadtile_characters"]["codes"].values()],
            has_null=stats["has_nan"],
        )
    raise OptionError(f"the column has the encoding {kind}; expected one that begins with TABULAR_.")


def _categorical(stats: Mapping[str, Any], *, is_number: bool) -> Categorical:
    tokens = list(map(str, stats["codes"]))
    known = [one.removeprefix(ESCAPE) for one in tokens if one not in (RARE, NULL)]
    if is_number and stats["min_decimal"] < 0:  # floats as Arrow writes them: 50, not 50.0
        known = pa.array([float(one) for one in known], pa.float64()).cast(pa.string()).to_pylist()
    return Categorical(values=known, has_null=NULL in tokens, has_rare=not is_number and bool(stats.get("no_of_rare_categories")))
