"""A backtest: forecasts from past steps of the data, compared with what came and with a seasonal naive forecast.

    Backtest        the forecasts with actual and naive values; `metrics` per step ahead
    compare         predictions of one column become such rows
    season_of       the steps after which a series of a frequency repeats
    plot_series     one plot per series: known values, forecasts, and what came

The origin of the last forecast is a horizon before the end of a series, that of the one before a horizon earlier, and so on. A naive
forecast repeats the values of the last season before its origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker import _disk
from stoker._types import Array
from stoker.experiment.prediction_table import Predicted, series_name, time_column
from stoker.store.manifest import NANOSECONDS, parse_frequency
from stoker.store.store import Store

HOUR, DAY = NANOSECONDS["h"], NANOSECONDS["d"]
SHOWN_HORIZONS = 3
"""Known steps that a plot shows before the first forecast, in horizons."""


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """Forecasts of a rolling origin.

    Args:
        table: The columns of `TrainedRun.predict`, and `actual` and `naive`: what came, and the seasonal naive forecast.
        season: Steps after which the naive forecast repeats.
        windows: Forecasts per series that were asked for; short series have fewer.
    """

    table: pa.Table
    season: int
    windows: int

    def metrics(self, ahead: int | None = None) -> list[dict[str, Any]]:
        """Return the errors per column and step ahead, over all rows whose actual and naive values are known.

        Args:
            ahead: A number of steps ahead instead of each.

        Returns:
            Mappings with `column`, `ahead`, `count`, `mae`, `rmse`, `naive_mae` and `naive_rmse`; `ahead` 0 is over all steps.
        """
        columns = np.asarray(self.table["column"].to_pylist())
        steps = self.table["ahead"].to_numpy()
        actual, naive, predicted = (self.table[name].to_numpy() for name in ("actual", "naive", "prediction"))
        counts = np.isfinite(actual) & np.isfinite(naive) & np.isfinite(predicted)
        rows = []
        for column in dict.fromkeys(columns.tolist()):
            for number in [*np.unique(steps).tolist(), 0] if ahead is None else [ahead]:
                chosen = counts & (columns == column) & ((steps == number) | (number == 0))
                row: dict[str, Any] = {"column": column, "ahead": number, "count": int(chosen.sum())}
                for prefix, values in (("", predicted), ("naive_", naive)):
                    errors = (values - actual)[chosen]
                    row[f"{prefix}mae"] = float(np.abs(errors).mean()) if len(errors) else float("nan")
                    row[f"{prefix}rmse"] = float(np.sqrt((errors**2).mean())) if len(errors) else float("nan")
                rows.append(row)
        return rows


def compare(part: Predicted, season: int) -> Predicted:
    """Add what came and the seasonal naive forecast to predictions of one column."""
    assert part.ahead is not None
    name, _, index = part.column.partition("[")
    values = np.asarray(part.store.column(name), dtype=np.float64)
    values = values[:, int(index.rstrip("]"))] if index else values.reshape(len(values))
    begins, ends = part.store.offsets[part.series], part.store.offsets[part.series + 1]
    same_season = part.steps - part.ahead - season + 1 + (part.ahead - 1) % season

    def at(steps: Array) -> Array:
        inside = (steps >= 0) & (begins + steps < ends)
        rows: Array = np.where(inside, values[np.where(inside, begins + steps, 0)], np.nan)
        return rows

    return replace(part, values={**part.values, "actual": at(part.steps), "naive": at(same_season)})


def season_of(store: Store, time: str | None, freq: str | None) -> int:
    """Return the steps of a day for steps of hours or less, 7 for days, 52 for weeks, 12 for months, otherwise 1."""
    nanoseconds = 0
    if freq is not None:
        frequency = parse_frequency(freq, "freq")
        if frequency.months:
            return max(1, 12 // frequency.months)
        nanoseconds = frequency.nanoseconds
    elif time is not None and store.schema[time].kind == "timestamp" and store.num_steps > 1:
        unit = NANOSECONDS[(store.schema[time].unit or "ns").partition(",")[0]]
        gaps = np.diff(np.asarray(store.column(time)[: int(store.offsets[1])], dtype=np.int64))
        nanoseconds = int(np.median(gaps)) * unit if len(gaps) else 0
    if 0 < nanoseconds < DAY:
        return max(1, round(DAY / nanoseconds))
    return {1: 7, 7: 52}.get(round(nanoseconds / DAY), 12 if 28 <= nanoseconds / DAY <= 31 else 1)


def plot_series(
    folder: Path, store: Store, table: pa.Table, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Draw one plot per series into a folder, `<series>.png`: known values, forecasts, and what came where it is known.

    Returns:
        The number of plots.
    """
    from stoker.train.plots import COLOURS, Curve, Panel, save_plot

    _disk.make_folder(folder)
    names = [series_name(store, number) for number in range(len(store))]
    where = {name: number for number, name in enumerate(names)}
    rows = table.select(["series", "step", "ahead", "column", "prediction"]).to_pylist()
    by_series: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        row["number"] = number
        by_series.setdefault(row["series"], []).append(row)
    paths = plot_names(folder, list(by_series))
    time = time_column(store, None)
    dated = time is not None and store.schema[time].kind == "timestamp" and "time" in table.column_names
    dates = np.asarray(table["time"]).astype("datetime64[ns]") if dated else None
    for done, (name, predicted) in enumerate(by_series.items(), 1):
        panels = []
        times = None if dates is None or time is None else _times(store, where[name], time, predicted, dates)
        for column in dict.fromkeys(row["column"] for row in predicted):
            chosen = [row for row in predicted if row["column"] == column]
            first, horizon = min(row["step"] - row["ahead"] + 1 for row in chosen), max(row["ahead"] for row in chosen)
            values = _values(store, where[name], column)
            begin = max(0, first - SHOWN_HORIZONS * horizon)
            curves = [Curve(colour=0, steps=list(range(begin, len(values))), values=values[begin:].tolist(), smooth=False)]
            for origin in sorted({row["step"] - row["ahead"] for row in chosen}):
                points = sorted((row["step"], row["prediction"]) for row in chosen if row["step"] - row["ahead"] == origin)
                joined = [(origin, values[origin])] if 0 <= origin < len(values) else []
                steps, forecast = zip(*joined, *points, strict=True)
                curves.append(Curve(colour=1 % len(COLOURS), steps=steps, values=forecast, smooth=False))
            panels.append(Panel(title=str(column), curves=curves, times=times, axis="step" if times is None else "time"))
        save_plot(paths[name], panels, title=str(name), legend=["known", "forecast"], quick=True)
        progress(done, len(by_series))
    return len(by_series)


def plot_names(folder: Path, names: Sequence[Any]) -> dict[Any, Path]:
    """Return the file of each series: its name where that can be one of a file, otherwise its number."""
    paths = {}
    for number, name in enumerate(names):
        stem = str(name)
        plain = re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", stem, re.ASCII) is not None
        paths[name] = folder / f"{stem if plain else f'series-{number}'}.png"
    return paths


def _times(store: Store, number: int, time: str, predicted: Sequence[dict[str, Any]], dates: Array) -> Array | None:
    """Return the time of each step of a series, and of the steps that were predicted after it; None where one is unknown."""
    unit = (store.schema[time].unit or "ns").partition(",")[0]
    known = np.asarray(store[number][time], dtype=np.int64).view(f"datetime64[{unit}]").astype("datetime64[ns]")
    times = np.full(max(len(known), 1 + max(row["step"] for row in predicted)), np.datetime64("NaT"), dtype="datetime64[ns]")
    times[: len(known)] = known
    for row in predicted:
        times[row["step"]] = dates[row["number"]]
    return None if np.isnat(times).any() else times


def _values(store: Store, number: int, column: str) -> Array:
    name, _, index = column.partition("[")
    values = np.asarray(store[number][name], dtype=np.float64)
    return values[:, int(index.rstrip("]"))] if index else values.reshape(len(values))
