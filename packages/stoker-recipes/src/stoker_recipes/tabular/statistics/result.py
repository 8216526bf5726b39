"""Statistics of a table, as an object and as JSON.

stats = stoker_recipes.tabular.analyze("events/*.parquet")
stats["price"].quantiles[500]
stats.save("stats.json")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET

from stoker.errors import OptionError
from stoker.extend import disk
from stoker_recipes.tabular.statistics.dates import DateColumn
from stoker_recipes.tabular.statistics.gather import AnyColumn
from stoker_recipes.tabular.statistics.numbers import NumberColumn
from stoker_recipes.tabular.statistics.quantiles import Limits

VERSION = 1


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a table, as `analyze` returns them: `stats["price"]` is a column.

    Example:
        >>> from stoker_recipes.tabular import analyze
        >>> stats = analyze({"x": [1, 2, 7]})
        >>> stats.num_rows, stats["x"].max
        (3, 7)
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

    def with_lengths(self, key: str, lengths: Any) -> Statistics:
        """A copy with the number of rows per key."""
        distinct, counts = np.unique(lengths, return_counts=True)
        counted = dict(zip(map(str, distinct.tolist()), counts.tolist(), strict=True))
        return msgspec.structs.replace(self, key=key, cnt_lengths=counted)

    def to_json(self) -> bytes:
        """As JSON."""
        whole = msgspec.structs.replace(self, columns=[_without_run(column) for column in self.columns])
        return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file, atomically."""
        disk.write_file(Path(path), self.to_json())


def _without_run(column: AnyColumn) -> AnyColumn:
    return msgspec.structs.replace(column, run=UNSET) if isinstance(column, NumberColumn | DateColumn) else column
