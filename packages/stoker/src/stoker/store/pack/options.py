"""`PackOptions`: the arguments of `pack`, parsed and checked, and the sizes that follow from its memory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from stoker.errors import OptionError
from stoker.store.formats.base import ReadLimits
from stoker.store.formats.csv import Dialect
from stoker.store.manifest import parse_frequency

Missing = Literal["keep", "error", "ffill", "drop"]
Duplicates = Literal["error", "first", "last", "keep"]
Ambiguous = Literal["infer", "first", "last", "error"]
Nonexistent = Literal["error", "shift"]

DTYPE_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 category text".split()
MIN_MEMORY_BYTES = 192 << 20
DEFAULT_MEMORY = "1GB"
MAX_THREADS = 1024
# What Python, NumPy and Arrow use before the first row is read; the rest of the memory is for rows.
_BASE_BYTES = 144 << 20
_MIN_CHUNK_BYTES = 256 << 10
LINE_SHARE = 24  # a line may use this part of the memory for rows: as bytes, text, decoded and shaped, it exists about ten times
COLUMN_BYTES = 32 << 10  # what a column of strings uses in decoders, builders and files, measured with 4,000 of them


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """What determines the content of a store, and the memory and threads of the pack."""

    series: str | None = None
    time: str | None = None
    sort: bool = False
    wide: bool = False
    columns: tuple[str, ...] | None = None
    dtype: str | None = None  # for all numeric columns that are not named in `dtypes`
    dtypes: Mapping[str, str] = field(default_factory=dict)
    missing: Missing = "keep"
    duplicates: Duplicates | None = None
    freq: str | None = None
    regular: bool = True
    timezone: str | None = None
    ambiguous: Ambiguous = "infer"
    nonexistent: Nonexistent = "error"
    source_column: str | None = None
    dialect: Dialect = field(default_factory=Dialect)
    memory_bytes: int = 1 << 30
    threads: int = 2
    sql: str | None = None
    """The statement whose result is packed; every other option uses the columns of the result."""

    def __post_init__(self) -> None:
        for name in ("series", "time"):
            if not isinstance(value := getattr(self, name), str | None):
                raise OptionError(
                    f"{name} is {value!r}; expected the name of one column. Join several columns into one before packing."
                )
        if self.sql is not None and (not isinstance(self.sql, str) or not self.sql.strip()):
            raise OptionError(f"sql={self.sql!r} is invalid; expected a statement like 'SELECT * FROM source WHERE price > 0'.")
        if self.wide and self.series is not None:
            raise OptionError("wide=True makes each column a series, so it cannot be combined with series=. Use one of them.")
        if self.wide and self.source_column is not None:
            raise OptionError("source_column= is not for wide=True, where series are named by their file and column.")
        if self.sort and self.time is None:
            raise OptionError("sort=True orders rows by time, so it needs time=.")
        if self.missing not in get_args(Missing):
            raise OptionError(f"missing={self.missing!r} is invalid; expected one of {', '.join(get_args(Missing))}.")
        self._check_time_rules()
        if self.columns is not None and not self.columns:
            raise OptionError("columns=[] names no column.")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise OptionError(f"memory= is {self.memory_bytes >> 20} MB, but a pack needs at least {MIN_MEMORY_BYTES >> 20} MB.")
        parse_threads(self.threads)

    def _check_time_rules(self) -> None:
        allowed = {
            "duplicates": (None, *get_args(Duplicates)),
            "ambiguous": get_args(Ambiguous),
            "nonexistent": get_args(Nonexistent),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                expected = ", ".join(str(value) for value in values if value is not None)
                raise OptionError(f"{name}={getattr(self, name)!r} is invalid; expected one of {expected}.")
        for name in ("duplicates", "freq", "timezone"):
            if getattr(self, name) is not None and self.time is None:
                raise OptionError(f"{name}={getattr(self, name)!r} is about the times of the rows, so it needs time=.")
        if self.freq is not None:
            parse_frequency(self.freq, "freq")
        elif not self.regular:
            raise OptionError("regular=False says that freq= is only declared, so it needs freq=.")
        if self.fills_steps and self.duplicates == "keep":
            raise OptionError("freq= needs one row per time, so duplicates='keep' is invalid with it; expected 'first' or 'last'.")
        if self.fills_steps and self.missing == "drop":
            raise OptionError("freq= adds missing steps, and missing='drop' drops them. Use one of them, or pass regular=False.")

    @property
    def fills_steps(self) -> bool:
        """Whether missing steps become rows."""
        return self.freq is not None and self.regular

    @property
    def merges_duplicates(self) -> bool:
        """Whether rows of equal times become one."""
        return self.duplicates in ("first", "last")

    @property
    def has_rules(self) -> bool:
        """Whether rows are merged or added once they are in their final order."""
        return self.merges_duplicates or self.fills_steps

    @property
    def fills_last(self) -> bool:
        """Whether missing values are filled forward only when rows are in their final order."""
        return self.sort or self.has_rules

    @property
    def strict_time(self) -> bool:
        """Whether equal times within a series are an error."""
        if self.duplicates is None:
            return not self.sort or self.fills_steps
        return self.duplicates == "error"

    @property
    def working_bytes(self) -> int:
        """Memory for rows: `memory_bytes` less what the process uses anyway."""
        return self.memory_bytes - _BASE_BYTES

    @property
    def num_readers(self) -> int:
        """Threads that decode: `threads`, unless their chunks would become too small to be worth a task."""
        return max(1, min(self.threads, self.working_bytes // (12 * _MIN_CHUNK_BYTES) - 1))

    @property
    def chunk_bytes(self) -> int:
        """Size of one chunk of input. A few are in flight at a time: being read, shaped and written."""
        return min(self.working_bytes // (12 + 12 * self.num_readers), 8 << 20)

    @property
    def limits(self) -> ReadLimits:
        """How long a line and how wide a table may be, so that decoding it stays within the memory."""
        share = self.working_bytes // LINE_SHARE
        return ReadLimits(line_bytes=min(share, 128 << 20), columns=min(self.working_bytes // COLUMN_BYTES, 65_536))

    @property
    def run_bytes(self) -> int:
        """Memory of the rows that are sorted at a time, without their sorted copy and its writing."""
        return self.working_bytes // 8


def parse_bytes(given: str | int) -> int:
    """Parse a size like "256MB", "2G" or a number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(given), re.IGNORECASE)
    if not found:
        raise OptionError(f"{given!r} is not a size; write it like 256MB or 2GB.")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def parse_dtypes(given: str | Mapping[str, str] | np.dtype[np.generic] | type | None) -> tuple[str | None, dict[str, str]]:
    """Parse "float32", "close=float32,volume=int64", both together, or a mapping. Returns the default and the named types."""
    if given is None:
        return None, {}
    if isinstance(given, Mapping):
        return None, {name: _dtype_name(kind) for name, kind in given.items()}
    if not isinstance(given, str):
        return _dtype_name(given), {}
    default: str | None = None
    named: dict[str, str] = {}
    for part in given.split(","):
        name, equals, kind = part.rpartition("=")
        if equals:
            named[name.strip()] = _dtype_name(kind)
        elif default is None:
            default = _dtype_name(part)
        else:
            raise OptionError(f"dtype={given!r} names two types for all columns; write column=type for one of them.")
    if default in ("category", "text"):
        raise OptionError(f"dtype={default!r} cannot apply to all columns; write 'column={default}'.")
    return default, named


def _dtype_name(given: str | np.dtype[np.generic] | type) -> str:
    name = given.strip() if isinstance(given, str) else np.dtype(given).name
    if name not in DTYPE_NAMES:
        raise OptionError(f"{name!r} is not a column type; expected one of {' '.join(DTYPE_NAMES)}.")
    return name


def parse_names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Parse "a,b,c" or a list of names.

    Example:
        >>> parse_names("a, b")
        ('a', 'b')
    """
    if given is None:
        return None
    return tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else tuple(given)


def parse_threads(given: int | None) -> int:
    """Check a number of threads; None means one per core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, MAX_THREADS) if given is None else given
    if not 1 <= threads <= MAX_THREADS:
        expected = "at least 1 is needed" if threads < 1 else f"at most {MAX_THREADS:,} can be used"
        raise OptionError(f"threads is {threads:,}, but {expected}.")
    return threads
