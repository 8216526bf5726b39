"""Data: from CSV files of bars to the feeds of a training run; each row has its features, its label, its time and its number.

    bars -> features -> labels -> ready rows -> samples -> train, validation and score, kept apart -> scaler

A file is one series, or one per symbol of its symbol column. Series are never sorted together by time: indicators, labels and windows
would run from one price into another. The bars are packed into the folder of the run, so that a run can be resumed and verified when
the CSV has changed since.

Indicators and labels are computed series by series. A row is used only once every indicator is warmed up, and a sample never spans
a row that is not used. The three blocks share no bar, neither in a window nor in a label nor in a warm-up. The scaler and the weight
of labels are fitted on the training rows alone. `audit` checks all of this on the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
import stoker_recipes.tfa
from stoker.errors import BadValueError, ConfigError, OptionError, SourceEmptyError, SourceNotFoundError, TimeOrderError
from stoker.extend import Array, disk
from stoker.store import find_sources
from stoker_recipes.tfa.indicators.bars import KEYS, TIMES
from stoker_recipes.tfa.model import Levels, levels_of, ratios
from stoker_recipes.tfa.settings import LEVERAGED, WHY_LEVERAGED, DatasetSettings, Settings

# ---- bars ----

PRICES = ("open", "high", "low", "close", "volume")
_UNITS = {"s": 1000, "ms": 1, "us": 1e-3, "ns": 1e-6}
_FINER = (10**11, 10**14, 10**17)
"""From these numbers on times are milliseconds, microseconds, nanoseconds: 1973 in these, thousands of years ahead in coarser ones."""


@dataclass(frozen=True, kw_only=True)
class BarSeries:
    """Series of bars, end to end."""

    names: tuple[str, ...]  # of the series
    weights: tuple[float, ...]
    lengths: Array
    times: Array  # milliseconds since 1970; int64
    columns: Mapping[str, Array]  # float64, by those names of PRICES that the files have
    sources: tuple[str, ...]  # the file of each series

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
        return slice(*self.offsets[number : number + 2].tolist())

    def place(self, row: int) -> str:
        """The bar in messages: counted from 1, like the lines of a file after its header."""
        number = int(np.searchsorted(self.offsets, row, side="right")) - 1
        several = f" of series {self.names[number]!r}" if len(set(self.sources)) < len(self.names) else ""
        return f"bar {row - int(self.offsets[number]) + 1:,}{several} of {self.sources[number]}"

    def cut(self, begins: Array) -> BarSeries:
        """The same bars with a new series at each of these rows."""
        offsets = np.union1d(self.offsets, begins)
        return self._pick(np.searchsorted(self.offsets, offsets[:-1], side="right") - 1, lengths=np.diff(offsets))

    def without(self, rows: Array) -> BarSeries:
        """The bars without these rows; a new series begins after each."""
        whole = self.cut(np.concatenate([rows, rows + 1]))
        keep = np.ones(self.num_bars, dtype=bool)
        keep[rows] = False
        series = np.flatnonzero(keep[whole.offsets[:-1]])
        columns = {name: values[keep] for name, values in self.columns.items()}
        return whole._pick(series, lengths=whole.lengths[series], times=self.times[keep], columns=columns)

    def _pick(self, series: Array, **changes: Any) -> BarSeries:
        for name in ("names", "weights", "sources"):
            changes[name] = tuple(getattr(self, name)[i] for i in series)
        return replace(self, **changes)


def read_bars(sources: Sequence[DatasetSettings], folder: Path) -> BarSeries:
    """Read all files, each packed into `folder` under its number; files that were packed before are not read again."""
    parts = []
    for number, source in enumerate(sources):
        path, target = Path(source.path), folder / f"{number}.stoker"
        if not (target / "manifest.json").is_file():
            if not path.is_file():
                raise SourceNotFoundError(
                    f"there is no file {path}. Set bars_csv, or the path of a dataset, to the CSV of the bars."
                )
            disk.make_folder(folder)
            header = find_sources(str(path))[0].schema().names
            stoker.pack(str(path), target, series=next((name for name in header if name.lower() in KEYS), None))
        parts.append(bars_of(stoker.open(target), source))
    shared = [name for name in PRICES if all(name in part.columns for part in parts)]
    return BarSeries(
        names=tuple(name for part in parts for name in part.names),
        weights=tuple(weight for part in parts for weight in part.weights),
        lengths=np.concatenate([part.lengths for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in shared},
        sources=tuple(source for part in parts for source in part.sources),
    )


def bars_of(store: stoker.Store, source: DatasetSettings) -> BarSeries:
    """The bars of a store; messages name them as those of `source`."""
    path = source.path
    names = {name.lower(): name for name, column in store.schema.items() if column.level == "step"}
    time = next((names[name] for name in TIMES if name in names), None)
    if time is None:
        raise ConfigError(f"{path} has the columns {', '.join(store.schema)}; expected a time column: {', '.join(TIMES)}.")
    if "close" not in names:
        raise ConfigError(f"{path} has the columns {', '.join(store.schema)}; expected a column close.")
    fallback = source.regime or Path(path).stem
    keys = [fallback if store.key is None else str(store[i][store.key]) for i in range(len(store))]
    for name in keys:
        if name.upper() in LEVERAGED:
            raise ConfigError(f"{path} has bars of {name}, {WHY_LEVERAGED}")
    return BarSeries(
        names=tuple(keys),
        weights=(source.weight,) * len(store),
        lengths=np.asarray(store.lengths, dtype=np.int64),
        times=_milliseconds(store, time, path),
        columns={name: _numbers(store, names[name], path) for name in PRICES if name in names},
        sources=(path,) * len(store),
    )


def _milliseconds(store: stoker.Store, name: str, path: str) -> Array:
    """Times as integers; floats are rounded."""
    column, values = store.schema[name], store.column(name)
    if column.kind == "timestamp":
        scale = _UNITS[(column.unit or "ns").partition(",")[0]]
        return np.asarray(values * scale if scale >= 1 else values // round(1 / scale), dtype=np.int64)
    if column.kind != "number":
        raise BadValueError(f"column {name!r} of {path} holds {column.label}; expected times: seconds since 1970, or ISO 8601.")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values))) + 1
            raise BadValueError(f"{name!r} of {path} is missing in row {row:,}; every bar needs a time.")
        values = np.rint(values)
    whole = values.astype(np.int64)
    finer = sum(len(whole) > 0 and abs(int(whole[0])) >= least for least in _FINER)
    return whole * 1000 if not finer else np.asarray(whole // 1000 ** (finer - 1))


def _numbers(store: stoker.Store, name: str, path: str) -> Array:
    column = store.schema[name]
    if column.kind != "number" or column.width is not None:
        raise OptionError(f"column {name!r} of {path} holds {column.label}; expected one number per bar.", column=name)
    return np.asarray(store.column(name), dtype=np.float64)


# ---- checks of the bars ----

HOUR = 3_600_000
MOST_HOLES = 0.01  # share of bars that may be missing within sessions
MOST_LAGS = 32
LARGEST_MOVE = 0.05  # a series whose median bar moves by more is several prices in one
SAME_PATH = 0.5


def check_bars(bars: BarSeries, *, gaps: str = "refuse") -> BarSeries:
    """The bars, cut at gaps if requested; raises an error for an invalid time, price or row."""
    if not bars.num_bars:
        raise SourceEmptyError(f"{', '.join(bars.sources)} has no bars.")
    _check_times(bars)
    bars = _check_holes(_check_prices(bars, gaps), gaps)
    _check_paths(bars)
    return bars


def _check_times(bars: BarSeries) -> None:
    steps = np.diff(bars.times)
    inside = np.ones(len(steps), dtype=bool)
    inside[bars.offsets[1:-1] - 1] = False
    wrong = np.flatnonzero(inside & (steps <= 0))
    if not len(wrong):
        return
    row = int(wrong[0]) + 1
    if steps[row - 1] < 0:
        advice = "Sort the bars by time, and give each series its own file (datasets) or symbol."
        raise TimeOrderError(f"{bars.place(row)} is {_seconds(-steps[row - 1])} before the one above it. {advice}")
    raise TimeOrderError(
        f"{bars.place(row)} has the time of the one above it, as {int((steps[inside] == 0).sum()):,} of {bars.num_bars:,} bars "
        f"have. Rounded times (float32 resolves 64 s at best) or series sorted together cause this; use integer seconds, "
        f"and one file per series."
    )


def _check_prices(bars: BarSeries, gaps: str) -> BarSeries:
    is_price = {name: np.isfinite(values) & (values > 0) for name in PRICES[:-1] if (values := bars.columns.get(name)) is not None}
    good = np.logical_and.reduce(list(is_price.values()))
    if good.all():
        return bars
    if gaps == "cut":
        return bars.without(np.flatnonzero(~good))
    row = int(np.argmin(good))
    name = next(column for column, is_good in is_price.items() if not is_good[row])
    raise BadValueError(
        f"{name} is {bars.columns[name][row]:g} in {bars.place(row)} ({int((~good).sum()):,} bars in all); expected prices "
        "above 0. Fix them, or set `gaps: cut` to start a new series after each."
    )


def _check_holes(bars: BarSeries, gaps: str) -> BarSeries:
    """Within a session bars are evenly spaced; a night is not a gap."""
    steps = np.diff(bars.times).astype(np.float64)
    steps[bars.offsets[1:-1] - 1] = np.nan
    if gaps == "allow" or not np.isfinite(steps).any():
        return bars
    usual = float(np.nanmedian(steps))
    holes = np.flatnonzero((steps > 1.5 * usual) & (steps < HOUR)) if usual < HOUR / 3 else np.array([], dtype=np.int64)
    if gaps == "cut":
        return bars.cut(holes + 1)
    missing = float((steps[holes] / usual - 1).sum())
    share = missing / (missing + bars.num_bars)
    if share > MOST_HOLES:
        row = int(holes[0]) + 1
        raise BadValueError(
            f"{share:.1%} of the bars within sessions are missing, the first before {bars.place(row)} "
            f"({_seconds(steps[row - 1])} after the one above it, usually {_seconds(usual)}): indicators and labels would count "
            f"rows, not time. Add the bars, or set `gaps: cut` (series end there) or `gaps: allow`."
        )
    return bars


def _check_paths(bars: BarSeries) -> None:
    """In one price path, bars that are further apart in time are not nearer in price."""
    for number, name in enumerate(bars.names):
        close = np.log(bars.columns["close"][bars.series(number)])
        if len(close) < 4 * MOST_LAGS:
            continue
        apart = {lag: float(np.median(np.abs(close[lag:] - close[:-lag]))) for lag in range(1, MOST_LAGS + 1)}
        next_ = apart.pop(1)
        lag = min(apart, key=apart.__getitem__)
        if next_ > LARGEST_MOVE or (next_ > 0 and apart[lag] < SAME_PATH * next_):
            why = f"a bar differs from the next by {next_:.2%} in the median, and by {apart[lag]:.2%} from the one {lag} rows on"
            raise TimeOrderError(
                f"series {name!r} of {bars.sources[number]} is several prices sorted together by time: {why}. Give each "
                "its own file, in `datasets`."
            )


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.0f} s"


# ---- labels: the direction of the next bars ----
#
# A row has a label only if it has a future in its own series that clears the thresholds; every other row is NaN, so that a model
# cannot learn volatility in place of direction. `compat` gives 0 for these rows, as Sentio's trainer does. Both compute in float64
# from closes that were never rounded.

LEAST_CLOSE = 1e-12  # a lower close counts as this one in Sentio's trainer, so that its logarithm is finite


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which rows have a label."""

    horizon: int = 1  # bars ahead
    least_volume: float = 0.0  # of the bar ahead
    least_change: float = 0.0  # of the logarithm of the close
    compat: bool = False

    def __str__(self) -> str:
        conditions = [f"a change of at least {self.least_change:g}"] if self.least_change else []
        conditions += [f"a volume of at least {self.least_volume:,.0f}"] if self.least_volume else []
        bars = "the next bar" if self.horizon == 1 else f"{self.horizon} bars ahead"
        return f"direction of {bars}" + (f", with {' and '.join(conditions)}" if conditions else "")


def label_bars(close: Array, volume: Array | None, rule: Rule, *, emit_from: int = 0) -> Array:
    """Label the bars of one series with the direction of the close.

    Args:
        close: Closes of the bars.
        volume: Volumes; needed where the rule has a least volume.
        rule: Horizon and thresholds.
        emit_from: With `rule.compat`, rows before it are 0.

    Returns:
        float32: 1 where the close rises, 0 where it falls, NaN where the rule gives no label (0 with `rule.compat`).

    Raises:
        OptionError: The horizon is below 1, or a volume is missing.

    Example:
        >>> import numpy as np
        >>> label_bars(np.array([1.0, 2.0, 2.0, 1.5]), None, Rule()).tolist()
        [1.0, nan, 0.0, nan]
    """
    if rule.horizon < 1:
        raise OptionError(f"label_horizon is {rule.horizon}; expected at least 1 bar.", parameter="label_horizon")
    close = np.asarray(close, dtype=np.float64)
    if rule.compat:
        close = np.maximum(close, LEAST_CLOSE)
    labels = np.full(len(close), np.nan, dtype=np.float32)
    if len(close) > rule.horizon:
        ahead = slice(rule.horizon, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.log(close[ahead]) - np.log(close[: -rule.horizon])
        counts = np.isfinite(change) & (np.abs(change) >= rule.least_change)
        counts &= change > 0 if rule.compat else change != 0
        if rule.least_volume and volume is None:
            raise OptionError(
                f"min_volume_threshold is {rule.least_volume:g}, but the bars have no volume. Leave it out.",
                parameter="min_volume_threshold",
            )
        if volume is not None and (rule.least_volume or rule.compat):  # Sentio always compares: a missing volume has no label
            counts &= np.asarray(volume)[ahead] >= rule.least_volume
        labels[: -rule.horizon][counts] = (change > 0)[counts]
    if rule.compat:
        labels[np.isnan(labels)] = 0.0
        labels[:emit_from] = 0.0
    return labels


def trailing_volatility(close: Array, window: int = 20) -> Array:
    """Standard deviation of the last `window` returns at each bar; NaN where there are fewer."""
    close = np.asarray(close, dtype=np.float64)
    deviations = np.full(len(close), np.nan)
    if len(close) > window:
        with np.errstate(divide="ignore", invalid="ignore"):
            returns = np.diff(np.log(close))
        sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (returns, returns**2))
        mean = (sums[window:] - sums[:-window]) / window
        deviations[window:] = np.sqrt(np.maximum((squares[window:] - squares[:-window]) / window - mean**2, 0))
    return deviations


# ---- preparation ----

FEATURES, LABEL, TIME, ROW, VOLATILITY, RATIOS = "features", "label", "ts", "row", "volatility", "ratios"
BARS_NAME, DATA_NAME = "bars", "data.stoker"  # names of the bars and of the ready rows in the folder of a run


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Rows of a sample: `context` rows that are only seen, then `run` rows with labels."""

    context: int
    run: int

    @property
    def view(self) -> stoker.Windows:
        """The view of the rows."""
        return stoker.Windows(self.context + self.run, stride=self.run, tail="drop")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The data of a training run."""

    settings: Settings
    spec: Mapping[str, Any]  # the JSON of the features, with the chosen arithmetic
    names: tuple[str, ...]  # of the features
    warm_up: int  # rows at the start of a series before all indicators are ready
    rule: Rule
    bars: BarSeries
    store: stoker.Store  # the ready rows: features, label, ts, row (its number among all bars) and volatility
    weights: Array  # of the series of the store
    shape: Shape
    split: stoker.split.Split
    scaler: stoker.split.Scaler
    levels: Levels | None
    pos_weight: torch.Tensor | None

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return max(1, (self.settings.batch_size or self.settings.usual.batch_size) // self.shape.run)

    def feed(self, part: str, *, batch_size: int | None = None, device: str = "cpu", return_index: bool = False) -> stoker.Feed:
        """The samples of a part; training samples are shuffled, or drawn by the weights of their series."""
        order: Any = None
        if part == "train":
            uneven, seed = len(set(self.weights.tolist())) > 1, self.settings.seed
            order = stoker.Weighted(self.weights, seed=seed) if uneven else stoker.Shuffle(seed)
        return stoker.Feed(
            self.store,
            self.shape.view,
            subset=self.split.subsets[part],
            batch_size=batch_size or self.batch_size,
            order=order,
            device=device,
            columns=[FEATURES, LABEL],
            returns=stoker.feed.Returns(index=return_index),
        )

    def labelled_rows(self, part: str) -> Array:
        """The rows of the store with the labels of a part, in the order of its samples."""
        samples = self.feed(part, batch_size=1).samples
        starts = samples.locate(np.arange(samples.num_samples)).starts
        within = np.arange(self.shape.context, self.shape.context + self.shape.run)
        return np.asarray(starts[:, None] + within).reshape(-1)


def without_compat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec without our key for Sentio's arithmetic."""
    return {name: value for name, value in spec.items() if name != "compat"}


def warm_up_of(spec: Mapping[str, Any]) -> int:
    """Bars before the first row with all features, in either arithmetic."""
    return max(stoker_recipes.tfa.FeatureStream(variant).spec.emit_from for variant in (spec, without_compat(spec)))


def read_spec(settings: Settings) -> dict[str, Any]:
    """The JSON of the features, with the requested arithmetic."""
    path = Path(settings.feature_spec)
    # Raises an error that names the file where it is not a spec.
    stoker_recipes.tfa.FeatureStream(path, compat="sentio" if settings.mode == "sentio" else None)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    if settings.mode is not None:
        content = without_compat(content)
    return {**content, "compat": "sentio"} if settings.mode == "sentio" else content


def prepare(settings: Settings, folder: Path, *, reach: int) -> Prepared:
    """Read, compute, label and split; packed bars and ready rows stay in `folder`. A logit depends on `reach` rows."""
    spec = read_spec(settings)
    warm_up = warm_up_of(spec)
    bars = check_bars(read_bars(settings.sources, folder / BARS_NAME), gaps=settings.gaps)
    rule = Rule(
        horizon=settings.label_horizon,
        least_volume=settings.min_volume_threshold,
        least_change=settings.least_change,
        compat=settings.labels == "compat",
    )
    values = stoker_recipes.tfa.features(stoker.Store.from_arrays(lengths=bars.lengths, **bars.columns), spec).values
    labels = _by_series(bars, lambda columns: label_bars(columns["close"], columns.get("volume"), rule, emit_from=warm_up))
    is_close = [feature["op"].upper() == "IDENT" and feature.get("source", "close") == "close" for feature in spec["features"]]
    usual = settings.chosen_model == "banded" and any(is_close)
    levels = levels_of(spec["features"]) if (usual if settings.stationary is None else settings.stationary) else None
    store, home = _ready_rows(bars, values, labels, levels, warm_up=warm_up)
    drop_store(folder / DATA_NAME)
    saved = store.save(folder / DATA_NAME, note="features and labels of bars")
    shape = _shape(settings, saved, reach=reach, warm_up=warm_up)
    split = stoker.split.chronological(
        saved, shape.view, fractions=settings.fractions, horizon=rule.horizon, warm_up=warm_up, embargo=settings.embargo, time=TIME
    )
    weigh = settings.pos_weight == "train" or (settings.pos_weight == "auto" and rule.compat)
    return Prepared(
        settings=settings,
        spec=spec,
        names=stoker_recipes.tfa.FeatureStream(spec).spec.names,
        warm_up=warm_up,
        rule=rule,
        bars=bars,
        store=saved,
        weights=np.array(bars.weights)[home],
        shape=shape,
        split=split,
        scaler=stoker.split.Scaler.fit(saved, split.train, columns=[FEATURES if levels is None else RATIOS]),
        levels=levels,
        pos_weight=stoker.split.pos_weight(saved, split.train, LABEL) if weigh else None,
    )


def drop_store(path: Path) -> None:
    """Remove a store, or the remains of a killed pack; other folders are kept."""
    if (path / "manifest.json").is_file() or (path / ".lock").is_file():
        disk.remove_folder(path)


def _by_series(bars: BarSeries, function: Any) -> Array:
    """The results of a function for the columns of each series, concatenated."""
    parts = [function({name: values[bars.series(i)] for name, values in bars.columns.items()}) for i in range(len(bars.names))]
    return np.concatenate(parts)


def _ready_rows(
    bars: BarSeries, values: Array, labels: Array, levels: Levels | None, *, warm_up: int
) -> tuple[stoker.Store, Array]:
    """A store of the rows with all features, where a series with gaps becomes several; and the original series of each."""
    offsets = bars.offsets
    place = np.arange(bars.num_bars) - np.repeat(offsets[:-1], bars.lengths)
    rows = np.flatnonzero((place >= warm_up) & np.isfinite(values).all(axis=1))
    if not len(rows):
        advice = "Use more bars, or a spec with shorter windows."
        raise OptionError(
            f"none of {bars.num_bars:,} bars has all features: these begin at bar {warm_up} of a series. {advice}",
            parameter="feature_spec",
        )
    series = np.searchsorted(offsets, rows, side="right") - 1
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(rows) > 1) | (np.diff(series) > 0)]))
    columns: dict[str, Array] = {
        FEATURES: values[rows],
        LABEL: labels[rows],
        TIME: bars.times[rows],
        ROW: rows.astype(np.int64),
        VOLATILITY: _by_series(bars, lambda columns: trailing_volatility(columns["close"]))[rows],
    }
    if levels is not None:
        columns[RATIOS] = ratios(columns[FEATURES], levels)
    lengths = np.diff(np.concatenate([begins, [len(rows)]]))
    return stoker.Store.from_arrays(lengths=lengths, **columns), series[begins]


def _shape(settings: Settings, store: stoker.Store, *, reach: int, warm_up: int) -> Shape:
    """The shape of a sample: long runs are cheap, but each block of time must hold several."""
    longest = int(np.asarray(store.lengths).max())
    rows = int(min(settings.fractions) * longest) - warm_up - (reach - 1) - settings.label_horizon
    shape = Shape(context=reach - 1, run=settings.run or max(1, min(settings.usual.run, rows // 4)))
    if shape.view.length > longest:
        raise OptionError(
            f"a sample has {shape.view.length:,} rows (the model sees {reach:,}, run {shape.run:,}), but the longest series has "
            f"{longest:,} with all features. Lower T, num_layers or run, or use more bars.",
            parameter="run",
        )
    return shape
