"""The arguments of `pack`: `Time` and `Resources` as the user gives them, and `PackOptions`, all of them parsed and checked.

The sizes of chunks, runs and lines follow from the memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from stoker.errors import OptionError
from stoker.store.formats.base import ReadLimits
from stoker.store.formats.csv import Csv
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


@dataclass(frozen=True)
class Time:
    """The column that must increase within a series, with the rules for its times: `pack(time=Time("ts", freq="1h"))`.

    Args:
        column: The name of the column.
        freq: The distance between two steps, like "15min", "1h", "1d" or "1mo". Steps that are missing are added, without values.
        regular: Whether `freq` adds missing steps. With False it is only declared, and times are not checked.
        duplicates: What to do with rows of a series that have equal times: raise an "error", store the "first" or "last" of them,
            or "keep" all. Without it they are an error, or kept with `sort=True`.
        timezone: The zone of local times without one, like "Europe/Berlin". They are stored as UTC, with the zone as their unit.
        ambiguous: What to do with local times that occur twice when daylight saving ends: "infer" it from the order of the rows,
            take the "first" or the "last", or raise an "error".
        nonexistent: What to do with local times that are skipped when daylight saving begins: raise an "error", or "shift" them to
            the first time that exists.

    Raises:
        OptionError: A value is invalid.

    Example:
        >>> Time("ts", freq="15min", duplicates="last").regular
        True
    """

    column: str
    _: KW_ONLY
    freq: str | None = None
    regular: bool = True
    duplicates: Duplicates | None = None
    timezone: str | None = None
    ambiguous: Ambiguous = "infer"
    nonexistent: Nonexistent = "error"

    def __post_init__(self) -> None:
        _check_name("time", self.column)
        _check_choice("duplicates", self.duplicates, Duplicates, None)
        _check_choice("ambiguous", self.ambiguous, Ambiguous)
        _check_choice("nonexistent", self.nonexistent, Nonexistent)
        if self.freq is not None:
            parse_frequency(self.freq, "freq")
        elif not self.regular:
            raise OptionError("regular=False says that freq= is only declared, so it needs freq=.", parameter="regular")
        if self.fills_steps and self.duplicates == "keep":
            raise OptionError(
                "freq= needs one row per time, so duplicates='keep' is invalid with it; expected 'first' or 'last'.",
                parameter="duplicates",
            )

    @property
    def fills_steps(self) -> bool:
        """Whether missing steps become rows."""
        return self.freq is not None and self.regular

    @property
    def merges_duplicates(self) -> bool:
        """Whether rows of equal times become one."""
        return self.duplicates in ("first", "last")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a pack may use: `pack(resources=Resources(memory="4GB"))`.

    Args:
        memory: How much memory the whole process may use, like "256MB". The input may be larger.
        threads: The number of threads (default: one per core).
        ray: Run on a Ray cluster: its address, like "ray://head:10001", or "ray" for the one that runs on this machine, or a new one.

    Example:
        >>> Resources(memory="256MB", threads=2).memory
        '256MB'
    """

    memory: str | int = DEFAULT_MEMORY
    threads: int | None = None
    ray: str | None = None


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """What determines the content of a store, and the memory and threads of the pack."""

    series: str | None = None
    times: Time | None = None
    sort: bool = False
    wide: bool = False
    columns: tuple[str, ...] | None = None
    dtype: str | None = None  # for all numeric columns that are not named in `dtypes`
    dtypes: Mapping[str, str] = field(default_factory=dict)
    missing: Missing = "keep"
    csv: Csv = field(default_factory=Csv)
    memory_bytes: int = 1 << 30
    threads: int = 2
    sql: str | None = None
    """The statement whose result is packed; every other option uses the columns of the result."""

    def __post_init__(self) -> None:
        if self.series is not None:
            _check_name("series", self.series)
        if self.sql is not None and (not isinstance(self.sql, str) or not self.sql.strip()):
            raise OptionError(
                f"sql={self.sql!r} is invalid; expected a statement like 'SELECT * FROM source WHERE price > 0'.", parameter="sql"
            )
        if self.wide and self.series is not None:
            raise OptionError(
                "wide=True makes each column a series, so it cannot be combined with series=. Use one of them.", parameter="wide"
            )
        if self.sort and self.times is None:
            raise OptionError("sort=True orders rows by time, so it needs time=.", parameter="sort")
        _check_choice("missing", self.missing, Missing)
        if self.fills_steps and self.missing == "drop":
            raise OptionError(
                "freq= adds missing steps, and missing='drop' drops them. Use one of them, or pass Time(regular=False).",
                parameter="missing",
            )
        if self.columns is not None and not self.columns:
            raise OptionError("columns=[] names no column.", parameter="columns")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise OptionError(
                f"memory= is {self.memory_bytes >> 20} MB, but a pack needs at least {MIN_MEMORY_BYTES >> 20} MB.",
                parameter="memory",
            )
        parse_threads(self.threads)

    @property
    def time(self) -> str | None:
        """The name of the time column."""
        return self.times.column if self.times is not None else None

    @property
    def freq(self) -> str | None:
        """The distance between two steps."""
        return self.times.freq if self.times is not None else None

    @property
    def timezone(self) -> str | None:
        """The zone of local times."""
        return self.times.timezone if self.times is not None else None

    @property
    def fills_steps(self) -> bool:
        """Whether missing steps become rows."""
        return self.times is not None and self.times.fills_steps

    @property
    def merges_duplicates(self) -> bool:
        """Whether rows of equal times become one."""
        return self.times is not None and self.times.merges_duplicates

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
        duplicates = self.times.duplicates if self.times is not None else None
        return duplicates == "error" if duplicates is not None else not self.sort or self.fills_steps

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


def _check_name(parameter: str, value: object) -> None:
    if not isinstance(value, str):
        raise OptionError(
            f"{parameter} is {value!r}; expected the name of one column. Join several columns into one before packing.",
            parameter=parameter,
        )


def _check_choice(parameter: str, value: object, choices: Any, *others: object) -> None:
    if value not in (*get_args(choices), *others):
        expected = ", ".join(get_args(choices))
        raise OptionError(f"{parameter}={value!r} is invalid; expected one of {expected}.", parameter=parameter)


def parse_bytes(given: str | int, *, parameter: str = "memory") -> int:
    """Parse a size like "256MB", "2G" or a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(given), re.IGNORECASE)
    if not match:
        raise OptionError(f"{given!r} is not a size; write it like 256MB or 2GB.", parameter=parameter)
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


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
            raise OptionError(
                f"dtype={given!r} names two types for all columns; write column=type for one of them.", parameter="dtype"
            )
    if default in ("category", "text"):
        raise OptionError(f"dtype={default!r} cannot apply to all columns; write 'column={default}'.", parameter="dtype")
    return default, named


def _dtype_name(given: str | np.dtype[np.generic] | type) -> str:
    name = given.strip() if isinstance(given, str) else np.dtype(given).name
    if name not in DTYPE_NAMES:
        raise OptionError(f"{name!r} is not a column type; expected one of {' '.join(DTYPE_NAMES)}.", parameter="dtype")
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
        raise OptionError(f"threads is {threads:,}, but {expected}.", parameter="threads")
    return threads
