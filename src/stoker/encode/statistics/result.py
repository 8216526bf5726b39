"""Result: the statistics of a table, as an object and as JSON that is versioned and parsed strictly.

    stats = stoker.encode.analyze("events/*.parquet")
    stats["price"].quantiles[500]
    stats.save("stats.json")                                # a report
    part.save("part7.json", partial=True)                   # with what joining needs
    whole = Statistics.load("part7.json").merge(Statistics.load("part8.json"))

Law: joined parts say the same as one analysis of all rows: exactly where both are exact, within the stated bounds beyond.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from stoker import files
from stoker.encode.statistics.columns import AnyColumn, DateColumn, NumberColumn
from stoker.encode.statistics.limits import Limits
from stoker.encode.statistics.rules import check_lengths, check_statistics
from stoker.errors import OptionError, SchemaDrift, SourceInvalid, SourceNotFound

VERSION = 1


class Statistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a table."""

    format: Literal["stoker-statistics"] = "stoker-statistics"
    version: int = VERSION
    num_rows: int
    limits: Limits
    columns: list[AnyColumn]
    key: str | None = None
    """The column that says whose each row is."""
    cnt_lengths: dict[str, int] | None = None
    """How many keys have how many rows."""

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
        raise OptionError(f"there is no column {name!r}, only {', '.join(self.names[:20])}.")

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Other processes get the JSON: what joining needs is shared memory, which cannot travel."""
        return Statistics.from_json, (self.to_json(partial=True),)

    def with_lengths(self, key: str, lengths: Any) -> Statistics:
        """The same, with the number of rows that each key has, as a store of sequences knows them."""
        found, counts = np.unique(lengths, return_counts=True)
        counted = dict(zip(map(str, found.tolist()), counts.tolist(), strict=True))
        return msgspec.structs.replace(self, key=key, cnt_lengths=counted)

    def merge(self, *others: Statistics) -> Statistics:
        """The statistics of these rows with those of other parts behind them."""
        return reduce(_merge, others, self)

    def to_json(self, *, partial: bool = False) -> bytes:
        """As JSON; with `partial` along with all that joining needs, which may be as large as the columns."""
        whole = self if partial else msgspec.structs.replace(self, columns=[_without_state(column) for column in self.columns])
        return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"

    def save(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Write the JSON to a file, in one step."""
        files.write_file(Path(path), self.to_json(partial=partial))

    @staticmethod
    def from_json(data: bytes, where: str = "the statistics") -> Statistics:
        """Parse; anything that is not exactly right raises `SourceInvalid` with the field that is wrong."""
        try:
            statistics = msgspec.json.decode(data, type=Statistics)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _refuse_other_version(data, where)
            raise SourceInvalid(f"{where} is not what analyze wrote: {error}.") from None
        if statistics.version != VERSION:
            _refuse_other_version(data, where)
        num_keyed = check_lengths(statistics.num_rows, statistics.key, statistics.cnt_lengths, where)
        keyless = statistics.key is not None and num_keyed < statistics.num_rows
        check_statistics(statistics.num_rows, statistics.limits, statistics.columns, where, keyless=keyless)
        return statistics

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Statistics:
        """Read what `save` wrote."""
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise SourceNotFound(f"{path} does not exist. Make it with `stoker.encode.analyze(...).save(...)`.") from None
        return Statistics.from_json(data, str(path))


def _merge(one: Statistics, other: Statistics) -> Statistics:
    from stoker.encode.statistics.gathering import merge_columns, merge_lengths

    if one.limits != other.limits:
        raise OptionError(f"one part was analysed with {_told(one.limits)}, another with {_told(other.limits)}. Use the same.")
    if one.key != other.key:
        raise OptionError(f"one part was analysed with the key {one.key!r}, another with {other.key!r}. Use the same.")
    if one.names != other.names:
        differing = sorted(set(one.names) ^ set(other.names)) or ["the order"]
        raise SchemaDrift(f"parts differ in their columns: {', '.join(differing[:20])}. Analyse both with the same `columns`.")
    columns = [merge_columns(first, second, one.limits) for first, second in zip(one.columns, other.columns, strict=True)]
    lengths = merge_lengths(one.cnt_lengths, other.cnt_lengths)
    return msgspec.structs.replace(one, num_rows=one.num_rows + other.num_rows, columns=columns, cnt_lengths=lengths)


def _told(limits: Limits) -> str:
    return f"exact={limits.exact:,} and categories={limits.categories:,}"


def _without_state(column: AnyColumn) -> AnyColumn:
    return msgspec.structs.replace(column, state=None) if isinstance(column, NumberColumn | DateColumn) else column


class _AnyVersion(msgspec.Struct):
    version: int


def _refuse_other_version(data: bytes, where: str) -> None:
    """A file of another version may break this version's rules: then say that, not the broken rule."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if version != VERSION:
        known = "install a newer stoker" if version > VERSION else "which never was"
        raise SourceInvalid(f"{where} at $.version: expected {VERSION}, found {version}: {known}.")
