"""The manifest: the one file that describes a store. `load` accepts only what follows every rule of the format.

Replacing this file is the commit point of a pack. `docs/format.md` is the normative text; the rules here follow it in the same
order, and each error names the JSON path that breaks a rule.

`Frequency` is the regular grid of times that a series has, such as "15min" or "1mo", with or without gaps.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import msgspec
import numpy as np
import xxhash

from stoker._disk import open_plain
from stoker._types import Array
from stoker.errors import ManifestError, OptionError, StoreNotFoundError

MANIFEST_NAME = "manifest.json"
WORK_NAME = "work"
MARK_NAME = "mark"  # says that Stoker made a work folder, and the shards beside it: written first and removed last
SHARD_NAME = re.compile(r"[0-9a-f]{16}\.npy")


NANOSECONDS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9, "w": 604_800 * 10**9,
}  # fmt: skip
_MONTHS = {"mo": 1, "q": 3, "y": 12}
_PANDAS = {"M": "mo", "ME": "mo", "MS": "mo", "QE": "q", "QS": "q", "YE": "y", "YS": "y"}  # where case decides: "m" is a minute
_ALIASES = {"sec": "s", "t": "min", "m": "min", "minute": "min", "hour": "h", "day": "d", "week": "w", "month": "mo", "year": "y"}


@dataclass(frozen=True)
class Frequency:
    """The distance between two steps: a number of nanoseconds, or of months."""

    text: str
    nanoseconds: int = 0
    months: int = 0

    def __str__(self) -> str:
        return self.text

    def grid_index(self, times: Array) -> tuple[Array, Array]:
        """Where times lie on the grid that begins with the first of them.

        Args:
            times: Nanoseconds since 1970, int64; at least one.

        Returns:
            The index of the last grid point up to each time, and whether the time is that grid point.
        """
        if self.nanoseconds:
            index, rest = np.divmod(times - times[0], self.nanoseconds)
            return index, rest == 0
        month, _, _, _ = month_parts(times)
        index = (month - month[0]) // self.months
        is_later = self.times_at(times, index) > times
        index = index - is_later
        return index, self.times_at(times, index) == times

    def times_at(self, times: Array, index: Array) -> Array:
        """The times at some indices of the grid that begins with the first of `times`, nanoseconds since 1970.

        A grid of months keeps the day of the month (the last day, where a month is shorter). If all times are the last day of their
        month, so is the grid.
        """
        if self.nanoseconds:
            on_grid: Array = times[0] + index * self.nanoseconds
            return on_grid
        month, day, rest, size = month_parts(times)
        days = np.array([LAST_DAY]) if (day == size - 1).all() else day[:1]
        return month_time(month[0] + index * self.months, days, rest[0])


def parse_frequency(text: str, option: str) -> Frequency:
    """A frequency from text; raises `OptionError` naming the option.

    Units of any case are the same, except for those of pandas: "M", "ME" and "MS" are months.

    Example:
        >>> parse_frequency("15min", "freq").nanoseconds == 15 * 60 * 10**9, parse_frequency("q", "freq").months
        (True, 3)
    """
    match = re.fullmatch(r"\s*(\d{0,9})\s*([a-zA-Z]+)\s*", text) if isinstance(text, str) else None
    if match is not None and (not match[1] or int(match[1])):
        count, unit = int(match[1] or 1), _PANDAS.get(match[2], match[2].lower())
        if unit not in NANOSECONDS and unit not in _MONTHS:  # "ms" is not several "m"
            unit = _ALIASES.get(unit, _ALIASES.get(unit.removesuffix("s"), unit))
        if unit in NANOSECONDS and count * NANOSECONDS[unit] < 2**62:
            return Frequency(f"{count}{unit}", nanoseconds=count * NANOSECONDS[unit])
        if unit in _MONTHS:
            return Frequency(f"{count}{unit}", months=count * _MONTHS[unit])
    raise OptionError(
        f"{option} is {text!r}; expected a number and a unit, like '15min', '1h', '1d' or '1mo' (ns us ms s min h d w mo q y).",
        parameter=option,
    )


def month_parts(times: Array, per_day: int = NANOSECONDS["d"]) -> tuple[Array, Array, Array, Array]:
    """Months since 1970, days since the first of the month, units since midnight, and the days of the month."""
    days, rest = np.divmod(times, per_day)
    month = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return month, days - first_day(month), rest, first_day(month + 1) - first_day(month)


def first_day(month: Array) -> Array:
    """The first day of a month, both counted since 1970."""
    days: Array = month.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return days


def month_time(month: Array, day: Array, rest: Array, per_day: int = NANOSECONDS["d"]) -> Array:
    """The time on a day of a month, or on its last day where it is shorter; the inverse of `month_parts`."""
    first = first_day(month)
    times: Array = (first + np.minimum(day, first_day(month + 1) - first - 1)) * per_day + rest
    return times


LAST_DAY = 30  # as days since the first of a month: the last day of every month
VERSION = 1
NEWEST_VERSION = 2  # written only where one of its fields is used, so that plain stores stay as they were
MAX_BYTES = 64 << 20
MAX_COLUMNS = 4096
BLOCK_BYTES = 16 << 20  # one hash each; format.md fixes it
HEADER_BYTES = 128
DTYPES = frozenset("|b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8".split())
_ZEROS = "0" * 32
_MAX_INT = 2**63 - 1


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `.npy` file: its name, what its header says, and a hash for each 16 MiB of its values."""

    file: str
    dtype: str
    shape: list[int]
    blocks: list[str]

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return HEADER_BYTES + self.values_bytes

    @property
    def values_bytes(self) -> int:
        """Size of the values behind the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of strings: UTF-8 bytes end to end, and `num + 1` offsets into them."""

    utf8: Shard
    offsets: Shard


class NonFinite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of values that are not finite, and the (series, step) of the first."""

    nan: int
    inf: int
    first: list[int] | None


class ColumnEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One column: one value per step, or one per series.

    kind       values are
    number     themselves
    bfloat16   the upper half of a float32, as `<u2`
    timestamp  `<i8` since 1970 in `unit`, like "ns" or "us, UTC"; missing is the smallest int64
    duration   `<i8` in `unit`
    category   `<i4` codes into `texts`; missing is -1
    text       null: the strings are in `texts` (level "series" only)
    """

    name: str
    level: Literal["step", "series"]
    kind: Literal["number", "bfloat16", "timestamp", "duration", "category", "text"]
    unit: str | None
    values: Shard | None
    texts: Text | None
    missing: int
    nonfinite: NonFinite


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file that was read. `xxh3` (128 bits) is null for tables that were in memory."""

    name: str
    num_bytes: int
    num_rows: int
    xxh3: str | None


class PartList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts that were appended: the first `num_bytes` of `parts.jsonl`, which are `count` lines with this hash."""

    count: int
    num_bytes: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole store. `length` is set where all series have the same length, `offsets` where they do not.

    The fields behind `sources` are of version 2 and absent where they are None. With `parts`, all other fields describe the store
    before the first append.
    """

    format: Literal["stoker"]
    version: int
    digest: str
    num_series: int
    num_steps: int
    length: int | None
    offsets: Shard | None
    key: str | None
    time: str | None
    columns: list[ColumnEntry]
    notes: list[str]
    sources: list[SourceEntry]
    revision: int | None = None
    parts: PartList | None = None
    freq: str | None = None  # the declared distance between two steps, like "1h"
    sql: str | None = None  # the statement whose result was packed


_VERSION_2_FIELDS = ("revision", "parts", "freq", "sql")


def format_version(manifest: Manifest) -> int:
    """The version that a manifest must have: the oldest that knows all fields in use."""
    return NEWEST_VERSION if any(getattr(manifest, name) is not None for name in _VERSION_2_FIELDS) else VERSION


def with_parts(manifest: Manifest, parts: PartList | None) -> Manifest:
    """The manifest with another list of parts (None: without any), its version and digest filled in."""
    changed = msgspec.structs.replace(manifest, parts=parts, revision=None if parts is None else parts.count + 1)
    return msgspec.json.decode(dump(msgspec.structs.replace(changed, version=format_version(changed))), type=Manifest)


def with_fields_of(manifest: Manifest, other: Manifest) -> Manifest:
    """The manifest with the fields of version 2 that `other` has, except those about parts: for a copy of a store."""
    kept = {name: getattr(other, name) for name in _VERSION_2_FIELDS if name not in ("revision", "parts")}
    changed = msgspec.structs.replace(manifest, **kept)
    return msgspec.structs.replace(changed, version=format_version(changed))


def dump(manifest: Manifest) -> bytes:
    """Serialise with the digest filled in. Each manifest has exactly one serialisation."""
    text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, digest=_ZEROS)), indent=1) + b"\n"
    return text.replace(_ZEROS.encode(), xxhash.xxh3_128_hexdigest(text).encode(), 1)


def named_shards(manifest: Manifest) -> Iterator[tuple[str, Shard]]:
    """All shards of a manifest, with what they hold."""
    if manifest.offsets is not None:
        yield "the offsets", manifest.offsets
    for column in manifest.columns:
        if column.values is not None:
            yield f"column {column.name!r}", column.values
        if column.texts is not None:
            yield f"texts of column {column.name!r}", column.texts.utf8
            yield f"text offsets of column {column.name!r}", column.texts.offsets


def shards(manifest: Manifest) -> Iterator[Shard]:
    """All shards that a manifest names."""
    return (shard for _, shard in named_shards(manifest))


def load(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest; raises `ManifestError` for anything that breaks a rule."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"{where} has {len(data):,} bytes, but a manifest has at most {MAX_BYTES:,}.")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # A store of another version may break the rules of this one: then name the version, not the broken rule.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _refuse_other_version(msgspec.json.decode(data, type=_AnyVersion).version, where)
        raise ManifestError(f"{where} is not a stoker manifest: {error}.") from None
    _refuse_other_version(manifest.version, where)
    _check(manifest, where)
    if dump(manifest) != data:
        raise ManifestError(f"{where} does not match its digest: it was changed after it was written. Pack the store again.")
    return manifest


class _AnyVersion(msgspec.Struct):
    version: int


def _refuse_other_version(version: int, where: str) -> None:
    what, known = f"{where} has format version {version}", f"versions {VERSION} to {NEWEST_VERSION}"
    if version > NEWEST_VERSION:
        raise ManifestError(f"{what}, but this stoker reads {known}: install a newer stoker.")
    if version < VERSION:
        raise ManifestError(f"{what}, which does not exist: this stoker reads {known}.")


def _check(manifest: Manifest, where: str) -> None:
    """The rules that types alone cannot express."""
    rule, m = _Rules(where), manifest
    rule.hexadecimal("$.digest", m.digest, 32)
    rule.count("$.num_series", m.num_series)
    rule.count("$.num_steps", m.num_steps)
    rule.check((m.length is None) != (m.offsets is None), "$.length", "exactly one of length and offsets is given", "both or none")
    if m.length is not None:
        rule.count("$.length", m.length)
        rule.equal("$.num_steps", m.num_steps, m.length * m.num_series)
    if m.offsets is not None:
        rule.flat_shard("$.offsets", m.offsets, dtype="<i8", rows=m.num_series + 1)
    rule.check(len(m.columns) <= MAX_COLUMNS, "$.columns", f"at most {MAX_COLUMNS} columns", str(len(m.columns)))
    names: set[str] = set()
    for i, column in enumerate(m.columns):
        path = f"$.columns[{i}]"
        rule.text(f"{path}.name", column.name)
        normal = unicodedata.normalize("NFC", column.name)
        rule.check(normal not in names, f"{path}.name", "names that differ after Unicode NFC", repr(column.name))
        names.add(normal)
        _check_column(rule, path, column, m.num_steps if column.level == "step" else m.num_series, m.num_series)
    for field, name in (("key", m.key), ("time", m.time)):
        level = "series" if field == "key" else "step"
        fitting = {None, *(column.name for column in m.columns if column.level == level and column.kind != "category")}
        rule.check(name in fitting, f"$.{field}", f"the name of a column of level {level} that is not a category", repr(name))
    if m.freq is not None:
        rule.frequency("$.freq", m.freq, m.time)
    if m.sql is not None:
        rule.text("$.sql", m.sql)
    for i, note in enumerate(m.notes):
        rule.text(f"$.notes[{i}]", note)
    for i, source in enumerate(m.sources):
        rule.text(f"$.sources[{i}].name", source.name)
        rule.count(f"$.sources[{i}].num_bytes", source.num_bytes)
        rule.count(f"$.sources[{i}].num_rows", source.num_rows)
        if source.xxh3 is not None:
            rule.hexadecimal(f"$.sources[{i}].xxh3", source.xxh3, 32)
    rule.equal("$.version", m.version, format_version(m))
    rule.check((m.revision is None) == (m.parts is None), "$.revision", "revision and parts together", "one of them")
    if m.parts is not None and m.revision is not None:
        rule.count("$.parts.count", m.parts.count)
        rule.count("$.parts.num_bytes", m.parts.num_bytes)
        rule.hexadecimal("$.parts.xxh3", m.parts.xxh3, 32)
        fits = m.parts.count >= 1 and m.parts.num_bytes <= MAX_BYTES
        rule.check(fits, "$.parts", f"at least one part, and a list of at most {MAX_BYTES:,} bytes", repr(m.parts)[:80])
        rule.equal("$.revision", m.revision, m.parts.count + 1)


_DTYPES_OF_KIND = {"number": DTYPES, "bfloat16": {"<u2"}, "timestamp": {"<i8"}, "duration": {"<i8"}, "category": {"<i4"}}


def _check_column(rule: _Rules, path: str, column: ColumnEntry, rows: int, num_series: int) -> None:
    if column.kind == "text":
        fits = column.level == "series" and column.values is None and column.texts is not None
        rule.check(fits, path, "a text column has level series, texts, and no values", f"level {column.level}")
    elif column.values is None:
        rule.broken(f"{path}.values", "a shard", "null")
    else:
        dtype = column.values.dtype
        rule.check(dtype in _DTYPES_OF_KIND[column.kind], f"{path}.values.dtype", f"a type of kind {column.kind}", repr(dtype))
        rule.shard(f"{path}.values", column.values, dtype=None, rows=rows)
    has_texts, has_unit = column.kind in ("category", "text"), column.kind in ("timestamp", "duration")
    rule.check(
        (column.texts is not None) == has_texts, f"{path}.texts", "texts for kinds category and text, null for others", column.kind
    )
    if column.texts is not None:
        rule.flat_shard(f"{path}.texts.utf8", column.texts.utf8, dtype="|u1", rows=None)
        offsets = num_series + 1 if column.kind == "text" else None
        rule.flat_shard(f"{path}.texts.offsets", column.texts.offsets, dtype="<i8", rows=offsets)
        rule.check(column.texts.offsets.shape[0] >= 1, f"{path}.texts.offsets.shape", "at least 1", "0")
    expected = "a unit for kinds timestamp and duration, null for others"
    rule.check((column.unit is not None) == has_unit, f"{path}.unit", expected, repr(column.unit))
    if column.unit is not None:
        rule.unit(f"{path}.unit", column.unit, column.kind)
    rule.count(f"{path}.missing", column.missing)
    rule.count(f"{path}.nonfinite.nan", column.nonfinite.nan)
    rule.count(f"{path}.nonfinite.inf", column.nonfinite.inf)
    path, first, count = f"{path}.nonfinite.first", column.nonfinite.first, column.nonfinite.nan + column.nonfinite.inf
    rule.check((first is not None) == (count > 0), path, "a position if and only if a value is not finite", repr(first))
    if first is not None:
        rule.check(len(first) == 2, path, "[series, step]", repr(first)[:80])
        for number in first:
            rule.count(path, number)


class _Rules:
    """Checks that raise `ManifestError` with the JSON path of what is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where

    def broken(self, path: str, expected: str, found: str) -> NoReturn:
        raise ManifestError(f"{self._where} at {path}: expected {expected}, found {found}.")

    def check(self, is_kept: bool, path: str, expected: str, found: str) -> None:
        if not is_kept:
            self.broken(path, expected, found)

    def equal(self, path: str, found: int, expected: int) -> None:
        if found != expected:
            self.broken(path, f"{expected:,}", f"{found:,}")

    def count(self, path: str, value: int) -> None:
        self.check(0 <= value <= _MAX_INT, path, "a number from 0 to 2^63 - 1", str(value)[:40])

    def hexadecimal(self, path: str, value: str, length: int) -> None:
        if len(value) != length or any(c not in "0123456789abcdef" for c in value):
            self.broken(path, f"{length} hex digits", repr(value[:80]))

    def text(self, path: str, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.broken(path, "a string that is valid Unicode", ascii(value[:80]))

    def frequency(self, path: str, freq: str, time: str | None) -> None:
        try:
            is_valid = parse_frequency(freq, path).text == freq and time is not None
        except OptionError:
            is_valid = False
        self.check(is_valid, path, "a number and a unit like 1h, and a time column", repr(freq[:80]))

    def unit(self, path: str, unit: str, kind: str) -> None:
        self.text(path, unit)
        resolution, _, zone = unit.partition(", ")
        is_valid = resolution in ("s", "ms", "us", "ns") and not (zone and kind == "duration") and len(unit) <= 64
        self.check(is_valid, path, "s, ms, us or ns, and for timestamps perhaps a time zone", repr(unit[:80]))

    def shard(self, path: str, shard: Shard, *, dtype: str | None, rows: int | None) -> None:
        self.check(SHARD_NAME.fullmatch(shard.file) is not None, f"{path}.file", "16 hex digits and '.npy'", repr(shard.file[:80]))
        if shard.dtype not in DTYPES or (dtype is not None and shard.dtype != dtype):
            self.broken(f"{path}.dtype", dtype or "one of " + " ".join(sorted(DTYPES)), repr(shard.dtype[:80]))
        self.check(len(shard.shape) in (1, 2), f"{path}.shape", "one or two numbers", f"{len(shard.shape)}")
        for number in shard.shape:
            self.count(f"{path}.shape", number)
        self.check(shard.shape[1:] != [0], f"{path}.shape", "a width of at least 1", "0")
        self.check(shard.num_bytes <= _MAX_INT, f"{path}.shape", "a file of less than 2^63 bytes", f"{shard.num_bytes:,}")
        if rows is not None:
            self.equal(f"{path}.shape", shard.shape[0], rows)
        self.equal(f"{path}.blocks", len(shard.blocks), -(-shard.values_bytes // BLOCK_BYTES))
        for block in shard.blocks:
            self.hexadecimal(f"{path}.blocks", block, 16)

    def flat_shard(self, path: str, shard: Shard, *, dtype: str, rows: int | None) -> None:
        self.shard(path, shard, dtype=dtype, rows=rows)
        self.check(len(shard.shape) == 1, f"{path}.shape", "one number", f"{len(shard.shape)}")


def manifest_stamp(folder: Path) -> tuple[int, int, int] | None:
    """Changes whenever a pack replaces the manifest, even by an equal one; None where there is none."""
    try:
        stat = (folder / MANIFEST_NAME).lstat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a store."""
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        _explain_absence(folder)
    try:
        fd = open_plain(path, ManifestError)
    except FileNotFoundError:
        _explain_absence(folder)
    try:
        # One byte more than allowed, so that the size rule can fire without reading a file of any size.
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({os.strerror(error.errno or 0)}).") from error
    return load(data, str(path))


def _explain_absence(folder: Path) -> NoReturn:
    if not folder.exists():
        raise StoreNotFoundError(f"{folder} does not exist. Make a store with `stoker pack SOURCE {folder}`.")
    if (folder / WORK_NAME / MARK_NAME).is_file():
        raise StoreNotFoundError(f"{folder} holds a pack that was interrupted: run the same `stoker pack` again to resume it.")
    raise StoreNotFoundError(f"{folder} is not a store: it has no {MANIFEST_NAME}.")
