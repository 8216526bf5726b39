"""Bars: CSV files become series of bars with times.

A file is one series, or one per symbol of its symbol column. Series are never sorted together by time: indicators, labels and
windows would run from one price into another. The bars are packed into the folder of the run, so that a run can be resumed and
verified when the CSV has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import stoker
from stoker import _disk
from stoker._types import Array
from stoker.errors import BadValueError, ConfigError, OptionError, SourceNotFoundError
from stoker.recipes.tfa.settings import LEVERAGED, WHY_LEVERAGED, Dataset

PRICES = ("open", "high", "low", "close", "volume")
TIMES = ("ts_nyt_epoch", "ts", "ts_utc", "timestamp", "datetime", "date", "time")
"""Names of time columns; the first that a file has is used."""
KEYS = ("symbol", "ticker", "instrument")
_UNITS = {"s": 1000, "ms": 1, "us": 1e-3, "ns": 1e-6}
_FINER = (10**11, 10**14, 10**17)
"""From these numbers on times are milliseconds, microseconds, nanoseconds: 1973 in these, thousands of years ahead in coarser ones."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Series of bars, end to end."""

    names: tuple[str, ...]
    """Names of the series."""
    weights: tuple[float, ...]
    lengths: Array
    times: Array
    """Milliseconds since 1970; int64."""
    columns: Mapping[str, Array]
    """float64, by those names of PRICES that the files have."""
    sources: tuple[str, ...]
    """The file of each series."""

    @property
    def offsets(self) -> Array:
        """Where each series begins, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def num_bars(self) -> int:
        """Bars of all series."""
        return int(self.lengths.sum())

    def series(self, number: int) -> slice:
        """The rows of one series."""
        offsets = self.offsets
        return slice(int(offsets[number]), int(offsets[number + 1]))

    def place(self, row: int) -> str:
        """The bar in messages: counted from 1, like the lines of a file after its header."""
        number = int(np.searchsorted(self.offsets, row, side="right")) - 1
        several = f" of series {self.names[number]!r}" if len(set(self.sources)) < len(self.names) else ""
        return f"bar {row - int(self.offsets[number]) + 1:,}{several} of {self.sources[number]}"

    def cut(self, begins: Array) -> Bars:
        """The same bars with a new series at each of these rows."""
        offsets = np.union1d(self.offsets, begins)
        home = np.searchsorted(self.offsets, offsets[:-1], side="right") - 1
        return Bars(
            names=tuple(self.names[i] for i in home),
            weights=tuple(self.weights[i] for i in home),
            lengths=np.diff(offsets),
            times=self.times,
            columns=self.columns,
            sources=tuple(self.sources[i] for i in home),
        )

    def without(self, rows: Array) -> Bars:
        """The bars without these rows; a new series begins after each."""
        whole = self.cut(np.concatenate([rows, rows + 1]))
        keep = np.ones(self.num_bars, dtype=bool)
        keep[rows] = False
        there = keep[whole.offsets[:-1]]
        return Bars(
            names=tuple(name for name, kept in zip(whole.names, there, strict=True) if kept),
            weights=tuple(weight for weight, kept in zip(whole.weights, there, strict=True) if kept),
            lengths=whole.lengths[there],
            times=self.times[keep],
            columns={name: values[keep] for name, values in self.columns.items()},
            sources=tuple(source for source, kept in zip(whole.sources, there, strict=True) if kept),
        )


def read_bars(sources: Sequence[Dataset], folder: Path) -> Bars:
    """Read all files, each packed into `folder` under its number; files that were packed before are not read again."""
    parts = [_read(source, folder / f"{number}.stoker") for number, source in enumerate(sources)]
    shared = [name for name in PRICES if all(name in part.columns for part in parts)]
    return Bars(
        names=tuple(name for part in parts for name in part.names),
        weights=tuple(weight for part in parts for weight in part.weights),
        lengths=np.concatenate([part.lengths for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in shared},
        sources=tuple(source for part in parts for source in part.sources),
    )


def _read(source: Dataset, target: Path) -> Bars:
    path = Path(source.path)
    if not (target / "manifest.json").is_file():
        if not path.is_file():
            raise SourceNotFoundError(f"there is no file {path}. Set bars_csv, or the path of a dataset, to the CSV of the bars.")
        _disk.make_folder(target.parent)
        key = next((name for name in _header(path) if name.lower() in KEYS), None)
        stoker.pack(str(path), target, series=key)
    return bars_of(stoker.open(target), source)


def bars_of(store: stoker.Store, source: Dataset) -> Bars:
    """The bars of a store; messages name them as those of `source`."""
    path = source.path
    names = {name.lower(): name for name, column in store.schema.items() if column.level == "step"}
    time = next((names[name] for name in TIMES if name in names), None)
    if time is None:
        raise ConfigError(f"{path} has the columns {', '.join(store.schema)}; expected a time column: {', '.join(TIMES)}.")
    if "close" not in names:
        raise ConfigError(f"{path} has the columns {', '.join(store.schema)}; expected a column close.")
    keys = _keys(store, source)
    for name in keys:
        if name.upper() in LEVERAGED:
            raise ConfigError(f"{path} has bars of {name}, {WHY_LEVERAGED}")
    return Bars(
        names=tuple(keys),
        weights=(source.weight,) * len(store),
        lengths=np.asarray(store.lengths, dtype=np.int64),
        times=_milliseconds(store, time, path),
        columns={name: _numbers(store, names[name], path) for name in PRICES if name in names},
        sources=(path,) * len(store),
    )


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return [word.strip().strip('"') for word in file.readline(1 << 16).split(",")]


def _keys(store: stoker.Store, source: Dataset) -> list[str]:
    given = source.regime or Path(source.path).stem
    if store.key is None:
        return [given] * len(store)
    return [str(store[i][store.key]) for i in range(len(store))]


def _milliseconds(store: stoker.Store, name: str, path: str) -> Array:
    """Times as integers; floats are rounded."""
    column, values = store.schema[name], store.column(name)
    if column.kind == "timestamp":
        unit = (column.unit or "ns").partition(",")[0]
        scale = _UNITS[unit]
        return np.asarray(values * scale if scale >= 1 else values // round(1 / scale), dtype=np.int64)
    if column.kind != "number":
        raise BadValueError(f"column {name!r} of {path} holds {column.label}; expected times: seconds since 1970, or ISO 8601.")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise BadValueError(
                f"{name!r} of {path} is missing in row {int(np.argmin(np.isfinite(values))) + 1:,}; every bar needs a time."
            )
        values = np.rint(values)
    whole = values.astype(np.int64)
    finer = sum(len(whole) > 0 and abs(int(whole[0])) >= least for least in _FINER)
    return whole * 1000 if not finer else np.asarray(whole // 1000 ** (finer - 1))


def _numbers(store: stoker.Store, name: str, path: str) -> Array:
    column = store.schema[name]
    if column.kind != "number" or column.width is not None:
        raise OptionError(f"column {name!r} of {path} holds {column.label}; expected one number per bar.")
    return np.asarray(store.column(name), dtype=np.float64)
