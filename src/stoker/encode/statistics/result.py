"""Statistics of a table, as an object and as JSON that is versioned and validated strictly.

    stats = stoker.encode.analyze("events/*.parquet")
    stats["price"].quantiles[500]
    stats.save("stats.json")                                # a report
    part.save("part7.json", partial=True)                   # with the state that merging needs
    whole = Statistics.load("part7.json").merge(Statistics.load("part8.json"))

Merged parts equal one analysis of all rows: exactly where both are exact, within the stated bounds beyond.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import numpy as np

from stoker import _disk
from stoker.encode.digit_window import LOWEST, MAX_DECIMAL, MIN_DECIMAL
from stoker.encode.statistics.dates import PARTS, DateColumn, parse_moments
from stoker.encode.statistics.gather import AnyColumn, CategoryColumn, merge_columns, merge_lengths
from stoker.encode.statistics.numbers import NumberColumn
from stoker.encode.statistics.quantiles import GROUP, NUM_BINS, NUM_EXTREMES, NUM_QUANTILES, Limits, find_fault
from stoker.errors import OptionError, SchemaError, SourceInvalidError, SourceNotFoundError

VERSION = 1


class Statistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistics of a table, as `analyze` returns them: `stats["price"]` is a column.

    Example:
        >>> from stoker.encode import analyze
        >>> first, second = analyze({"x": [1, 2]}), analyze({"x": [7]})
        >>> whole = first.merge(second)
        >>> whole.num_rows, whole["x"].max
        (3, 7)
        >>> Statistics.from_json(whole.to_json(partial=True)) == whole
        True
    """

    format: Literal["stoker-statistics"] = "stoker-statistics"
    version: int = VERSION
    num_rows: int
    limits: Limits
    columns: list[AnyColumn]
    key: str | None = None
    """The column with the key of each row."""
    cnt_lengths: dict[str, int] | None = None
    """Number of keys per number of rows."""

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.name}: {column.type}" for column in self.columns)
        return f"<statistics of {self.num_rows:,} rows; {columns}>"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def __getitem__(self, name: str) -> AnyColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise OptionError(f"there is no column {name!r}; there are {', '.join(self.names[:20])}.")

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Pickled as JSON: the state holds memoryviews, which cannot be pickled."""
        return Statistics.from_json, (self.to_json(partial=True),)

    def with_lengths(self, key: str, lengths: Any) -> Statistics:
        """A copy with the number of rows per key."""
        found, counts = np.unique(lengths, return_counts=True)
        counted = dict(zip(map(str, found.tolist()), counts.tolist(), strict=True))
        return msgspec.structs.replace(self, key=key, cnt_lengths=counted)

    def merge(self, *others: Statistics) -> Statistics:
        """The statistics of these rows followed by those of other parts.

        Raises:
            OptionError: The parts were analysed with other limits or keys, or saved without `partial=True`.
            SchemaError: The parts have other columns.
        """
        return reduce(_merge, others, self)

    def to_json(self, *, partial: bool = False) -> bytes:
        """As JSON. With `partial`, the state that `merge` needs is included, which may be as large as the columns."""
        whole = self if partial else msgspec.structs.replace(self, columns=[_without_state(column) for column in self.columns])
        return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"

    def save(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Write the JSON to a file, atomically."""
        _disk.write_file(Path(path), self.to_json(partial=partial))

    @staticmethod
    def from_json(data: bytes, where: str = "the statistics") -> Statistics:
        """Parse and validate; raises `SourceInvalidError` with the path of the invalid field."""
        try:
            statistics = msgspec.json.decode(data, type=Statistics)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _refuse_other_version(data, where)
            raise SourceInvalidError(f"{where} cannot be read as JSON of analyze: {error}.") from None
        if statistics.version != VERSION:
            _refuse_other_version(data, where)
        check_statistics(statistics, where)
        return statistics

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Statistics:
        """Read what `save` wrote."""
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise SourceNotFoundError(f"{path} does not exist. Write it with `stoker.encode.analyze(...).save(...)`.") from None
        return Statistics.from_json(data, str(path))


def _merge(one: Statistics, other: Statistics) -> Statistics:
    if one.limits != other.limits:
        limits = [f"exact={part.limits.exact:,} and categories={part.limits.categories:,}" for part in (one, other)]
        raise OptionError(f"one part was analysed with {limits[0]}, another with {limits[1]}. Use the same.")
    if one.key != other.key:
        raise OptionError(f"one part was analysed with the key {one.key!r}, another with {other.key!r}. Use the same.")
    if one.names != other.names:
        differing = sorted(set(one.names) ^ set(other.names)) or ["the order"]
        raise SchemaError(f"parts differ in their columns: {', '.join(differing[:20])}. Analyse both with the same columns=.")
    columns = [merge_columns(first, second, one.limits) for first, second in zip(one.columns, other.columns, strict=True)]
    lengths = merge_lengths(one.cnt_lengths, other.cnt_lengths)
    return msgspec.structs.replace(one, num_rows=one.num_rows + other.num_rows, columns=columns, cnt_lengths=lengths)


def _without_state(column: AnyColumn) -> AnyColumn:
    return msgspec.structs.replace(column, state=None) if isinstance(column, NumberColumn | DateColumn) else column


class _AnyVersion(msgspec.Struct):
    version: int


def _refuse_other_version(data: bytes, where: str) -> None:
    """A file of another version may break the rules of this one: report the version, not the broken rule."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if version != VERSION:
        known = "install a newer stoker" if version > VERSION else "which does not exist"
        raise SourceInvalidError(f"{where} at $.version: expected {VERSION}, found {version}: {known}.")


# ---- rules: what must hold in the JSON beyond the types of its fields; an error names the JSON path ----

_MAX_INT = 2**63 - 1
_BOUNDS = {"int": range(-(2**63), 2**63), "uint": range(2**64)}


def check_statistics(statistics: Statistics, where: str) -> None:
    """Raise `SourceInvalidError` for the first rule that is broken."""
    num_rows, limits, lengths = statistics.num_rows, statistics.limits, statistics.cnt_lengths
    rule = _Rules(where)
    rule.count("$.num_rows", num_rows)
    if (statistics.key is None) != (lengths is None):
        rule.broken("$.cnt_lengths", "lengths exactly where there is a key", repr(lengths)[:80])
    num_keyed = rule.lengths("$.cnt_lengths", lengths or {})
    if num_keyed > num_rows:
        rule.broken("$.cnt_lengths", f"at most {num_rows:,} rows", f"{num_keyed:,}")
    rule.keyless = statistics.key is not None and num_keyed < num_rows
    if limits.exact < GROUP or limits.exact % GROUP or limits.exact > _MAX_INT >> 20:
        rule.broken("$.limits.exact", f"a multiple of {GROUP}", str(limits.exact))
    if not 1 <= limits.categories <= _MAX_INT:
        rule.broken("$.limits.categories", "at least 1", str(limits.categories))
    names: set[str] = set()
    for i, column in enumerate(statistics.columns):
        path = f"$.columns[{i}]"
        if column.name in names:
            rule.broken(f"{path}.name", "names that differ", repr(column.name))
        names.add(column.name)
        rule.count(f"{path}.num_values", column.num_values)
        rule.count(f"{path}.num_null", column.num_null)
        total = num_rows if column.cnt_lengths is None else rule.lengths(f"{path}.cnt_lengths", column.cnt_lengths)
        rule.equal(f"{path}.num_values", column.num_values, total)
        if column.num_keys is not None and not 0 <= column.num_keys <= num_rows:
            rule.broken(f"{path}.num_keys", "no more keys than rows", f"{column.num_keys:,}")
        if column.num_null > column.num_values:
            rule.broken(f"{path}.num_null", f"at most {column.num_values:,}", f"{column.num_null:,}")
        if isinstance(column, NumberColumn):
            _check_number(rule, path, column, limits)
        elif isinstance(column, DateColumn):
            _check_date(rule, path, column, limits)
        elif isinstance(column, CategoryColumn):
            _check_category(rule, path, column)


def _check_number(rule: _Rules, path: str, column: NumberColumn, limits: Limits) -> None:
    rule.count(f"{path}.num_infinite", column.num_infinite)
    num_finite = column.num_present - column.num_infinite
    rule.count(f"{path}.num_negative", column.num_negative)
    if num_finite < 0 or column.num_negative > num_finite:
        rule.broken(f"{path}.num_infinite", "no more values than there are", f"{column.num_infinite:,}")
    if (column.first_infinite is not None) != (column.num_infinite > 0):
        rule.broken(f"{path}.first_infinite", "a row exactly where something is infinite", repr(column.first_infinite))
    if column.first_infinite is not None and not 0 <= column.first_infinite < column.num_values:
        rule.broken(f"{path}.first_infinite", "one of the rows", str(column.first_infinite))
    for field, value in (("min", column.min), ("max", column.max), *(("quantiles", value) for value in column.quantiles or [])):
        if (value is None) != (num_finite == 0):
            rule.broken(f"{path}.{field}", "a number exactly where there are values", repr(value))
        if value is not None and column.form == "float" and not (isinstance(value, float) and math.isfinite(value)):
            rule.broken(f"{path}.{field}", "a finite number with a point, as the column's form is float", repr(value))
        if value is not None and column.form != "float" and not (isinstance(value, int) and value in _BOUNDS[column.form]):
            rule.broken(f"{path}.{field}", f"an integer, as the column's form is {column.form}", repr(value))
    for field, extremes in (("min_n", column.min_n), ("max_n", column.max_n)):
        _check_extremes(rule, f"{path}.{field}", column, len(extremes), num_finite)
        rule.ordered(f"{path}.{field}", extremes if field == "min_n" else extremes[::-1])
        if not all(map(math.isfinite, extremes)):
            rule.broken(f"{path}.{field}", "finite numbers", "others")
    places = [f"E{place}" for place in range(MAX_DECIMAL, MAX_DECIMAL - len(column.min_digits), -1)]
    if not MAX_DECIMAL - MIN_DECIMAL + 1 <= len(places) <= MAX_DECIMAL - LOWEST + 1 or list(column.min_digits) != places:
        rule.broken(f"{path}.min_digits", f"E{MAX_DECIMAL} down to E{MIN_DECIMAL} or lower", ", ".join(column.min_digits)[:80])
    if list(column.max_digits) != places:
        rule.broken(f"{path}.max_digits", "the places of min_digits", ", ".join(column.max_digits)[:80])
    for place in places:
        least, most = column.min_digits[place], column.max_digits[place]
        if not 0 <= least <= most <= 9:
            rule.broken(f"{path}.max_digits.{place}", "a range of digits", f"{least} to {most}")
    if column.cnt_values is not None:
        rule.counts(f"{path}.cnt_values", column.cnt_values, 0 if rule.keyless else 1)
        _check_total(rule, path, column, sum(column.cnt_values.values()), num_finite)
        number = float if column.form == "float" else int
        for text in column.cnt_values:
            try:
                same = repr(number(text)) == text
            except ValueError:
                same = False
            if not same:
                rule.broken(f"{path}.cnt_values", f"numbers of the form {column.form}", repr(text[:80]))
    _check_distribution(rule, path, column, num_finite, limits)


def _check_extremes(rule: _Rules, path: str, column: NumberColumn | DateColumn, found: int, num_values: int) -> None:
    """As many as there are values, up to 1000; one per key where there are keys, of which some may have no value."""
    most = min(num_values if column.num_keys is None else min(num_values, column.num_keys), NUM_EXTREMES)
    if column.num_keys is None or found > most or (num_values and not found and not rule.keyless):
        rule.equal(path, found, most)


def _check_total(rule: _Rules, path: str, column: AnyColumn, found: int, num_values: int) -> None:
    """Counts add up to all values; by key a value may be counted less often than it occurs, but not never."""
    if column.num_keys is None or found > num_values or (num_values and not found and not rule.keyless):
        rule.equal(f"{path}.cnt_values", found, num_values)


def _check_date(rule: _Rules, path: str, column: DateColumn, limits: Limits) -> None:
    for field, parts in (("min_values", column.min_values), ("max_values", column.max_values)):
        if list(parts) != list(PARTS):
            rule.broken(f"{path}.{field}", ", ".join(PARTS), ", ".join(parts)[:80])
    least, most = ([] if end is None else [end] for end in (column.min, column.max))
    lists = {"min": least, "max": most, "min_n": column.min_n, "max_n": column.max_n[::-1], "quantiles": column.quantiles or []}
    for field, texts in lists.items():
        try:
            rule.ordered(f"{path}.{field}", parse_moments(texts).tolist())
        except ValueError as error:
            rule.broken(f"{path}.{field}", "timestamps", str(error))
    for field in ("min", "max"):
        rule.equal(f"{path}.{field}", len(lists[field]), min(column.num_present, 1))
    for field in ("min_n", "max_n"):
        _check_extremes(rule, f"{path}.{field}", column, len(lists[field]), column.num_present)
    _check_distribution(rule, path, column, column.num_present, limits)


def _check_distribution(rule: _Rules, path: str, column: NumberColumn | DateColumn, num_values: int, limits: Limits) -> None:
    if column.num_distinct is not None:
        rule.count(f"{path}.num_distinct", column.num_distinct)
    rule.count(f"{path}.rank_error", column.rank_error)
    rule.equal(f"{path}.quantiles", len(column.quantiles or []), NUM_QUANTILES if num_values else 0)
    rule.equal(f"{path}.log_hist", len(column.log_hist), NUM_BINS)
    for count in column.log_hist:
        rule.count(f"{path}.log_hist", count)
    rule.equal(f"{path}.log_hist", sum(column.log_hist), num_values)
    fault = None if column.state is None else find_fault(column.state, num_values=num_values, limit=limits.exact)
    if fault is not None:
        field, expected, found = fault
        rule.broken(f"{path}.state.{field}", expected, found)


def _check_category(rule: _Rules, path: str, column: CategoryColumn) -> None:
    rule.counts(f"{path}.cnt_values", column.cnt_values, 0 if rule.keyless else 1)
    rule.count(f"{path}.count_error", column.count_error)
    total = sum(column.cnt_values.values())
    if column.count_error == 0:
        _check_total(rule, path, column, total, column.num_present)
    elif total > column.num_present:
        rule.broken(f"{path}.cnt_values", f"at most {column.num_present:,} values", f"{total:,}")
    if column.num_distinct != (None if column.count_error else len(column.cnt_values)):
        rule.broken(f"{path}.num_distinct", "the number of strings, or null with a count_error", repr(column.num_distinct))


class _Rules:
    """Checks that raise `SourceInvalidError` with the JSON path of what is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.keyless = False  # whether some rows have no key

    def broken(self, path: str, expected: str, found: str) -> NoReturn:
        raise SourceInvalidError(f"{self._where} at {path}: expected {expected}, found {found}.")

    def count(self, path: str, value: int) -> None:
        if not 0 <= value <= _MAX_INT:
            self.broken(path, "a number from 0 to 2^63 - 1", str(value)[:40])

    def equal(self, path: str, found: int, expected: int) -> None:
        if found != expected:
            self.broken(path, f"{expected:,}", f"{found:,}")

    def counts(self, path: str, counts: Mapping[str, int], least: int = 1) -> None:
        for count in counts.values():
            if not least <= count <= _MAX_INT:
                self.broken(path, f"counts of at least {least}", str(count)[:40])

    def lengths(self, path: str, lengths: Mapping[str, int]) -> int:
        """The number of rows of counted lengths."""
        for length in lengths:
            if not (length.isascii() and length.isdecimal()):
                self.broken(path, "lengths", repr(length[:80]))
        self.counts(path, lengths)
        return sum(int(length) * count for length, count in lengths.items())

    def ordered(self, path: str, values: Sequence[float]) -> None:
        if any(a > b for a, b in pairwise(values)):
            self.broken(path, "sorted values", "others")
