"""Data: from bars to the feeds of a training run; each row has its features, its label, its time and its number.

    bars -> features -> labels -> ready rows -> samples -> train, validation and score, kept apart -> scaler

Indicators and labels are computed series by series. A row is used only once every indicator is warmed up, and a sample never spans
a row that is not used. The three blocks share no bar, neither in a window nor in a label nor in a warm-up. The scaler and the weight
of labels are fitted on the training rows alone. `audit` checks all of this on the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
from stoker import _disk
from stoker._types import Array
from stoker.errors import OptionError
from stoker.recipes.tfa import audit
from stoker.recipes.tfa.bars import Bars, read_bars
from stoker.recipes.tfa.model import Levels, levels_of, ratios
from stoker.recipes.tfa.settings import Settings

# ---- labels: the direction of the next bars ----
#
# A row has a label only if it has a future in its own series that clears the thresholds; every other row is NaN, so that a model
# cannot learn volatility in place of direction. `compat` gives 0 for these rows, as Sentio's trainer does. Both compute in float64
# from closes that were never rounded.

LEAST_CLOSE = 1e-12
"""A lower close counts as this one in Sentio's trainer, so that its logarithm is finite."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which rows have a label."""

    horizon: int = 1
    """Bars ahead."""
    least_volume: float = 0.0
    """Least volume of the bar ahead."""
    least_change: float = 0.0
    """Least change of the logarithm of the close."""
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
        raise OptionError(f"label_horizon is {rule.horizon}; expected at least 1 bar.")
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
            raise OptionError(f"min_volume_threshold is {rule.least_volume:g}, but the bars have no volume. Leave it out.")
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
    found = np.full(len(close), np.nan)
    if len(close) > window:
        with np.errstate(divide="ignore", invalid="ignore"):
            returns = np.diff(np.log(close))
        sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (returns, returns**2))
        mean = (sums[window:] - sums[:-window]) / window
        found[window:] = np.sqrt(np.maximum((squares[window:] - squares[:-window]) / window - mean**2, 0))
    return found


def count_labels(labels: Array) -> dict[str, float]:
    """The number of rows, the share of rows with a label, and the share of labels that are 1."""
    known = np.isfinite(labels)
    return {
        "rows": len(labels),
        "labelled": float(known.mean()) if len(labels) else 0.0,
        "up": float(labels[known].mean()) if known.any() else 0.0,
    }


# ---- preparation ----

FEATURES, LABEL, TIME, ROW, VOLATILITY, RATIOS = "features", "label", "ts", "row", "volatility", "ratios"
BARS_NAME, DATA_NAME = "bars", "data.stoker"
"""Names of the bars and of the ready rows in the folder of a run."""
BANDED_RUN, WINDOWED_RUN = 240, 64
"""Consecutive labels per sample. The windows of a longer run share more computation; shorter runs mix better."""
BANDED_BATCH, WINDOWED_BATCH = 480, 1024


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
    spec: Mapping[str, Any]
    """The JSON of the features, with the chosen arithmetic."""
    spec_hash: str
    names: tuple[str, ...]
    """Names of the features."""
    warm_up: int
    """Rows at the start of a series before all indicators are ready."""
    rule: Rule
    bars: Bars
    store: stoker.Store
    """The ready rows: features, label, ts, row (its number among all bars) and volatility."""
    weights: Array
    """Weights of the series of the store."""
    shape: Shape
    split: stoker.split.Split
    scaler: stoker.split.Scaler
    levels: Levels | None
    pos_weight: torch.Tensor | None

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        banded = self.settings.chosen_model == "banded"
        labels = self.settings.batch_size or (BANDED_BATCH if banded else WINDOWED_BATCH)
        return max(1, labels // self.shape.run)

    def feed(self, part: str, *, batch_size: int | None = None, device: str = "cpu", return_index: bool = False) -> stoker.Feed:
        """The samples of a part; training samples are shuffled, or drawn by the weights of their series."""
        order: Any = None
        if part == "train":
            uneven = len(set(self.weights.tolist())) > 1
            seed = self.settings.seed
            order = stoker.Weighted(self.weights, seed=seed) if uneven else stoker.Shuffle(seed)
        return stoker.Feed(
            self.store,
            self.shape.view,
            subset=self.split.subsets[part],
            batch_size=batch_size or self.batch_size,
            order=order,
            device=device,
            columns=[FEATURES, LABEL],
            return_index=return_index,
        )

    def labelled_rows(self, part: str) -> Array:
        """The rows of the store with the labels of a part, in the order of its samples."""
        samples = self.feed(part, batch_size=1).samples
        starts = samples.locate(np.arange(samples.num_samples)).starts
        within = np.arange(self.shape.context, self.shape.context + self.shape.run)
        return np.asarray(starts[:, None] + within).reshape(-1)


def read_spec(settings: Settings) -> dict[str, Any]:
    """The JSON of the features, with the requested arithmetic."""
    path = Path(settings.feature_spec)
    # Raises an error that names the file where it is not a spec.
    stoker.encode.FeatureStream(path, compat="sentio" if settings.mode == "sentio" else None)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    if settings.mode is not None:
        content = {name: value for name, value in content.items() if name != "compat"}
    return {**content, "compat": "sentio"} if settings.mode == "sentio" else content


def prepare(settings: Settings, folder: Path, *, reach: int) -> Prepared:
    """Read, compute, label and split; packed bars and ready rows stay in `folder`. A logit depends on `reach` rows."""
    spec = read_spec(settings)
    parsed = stoker.encode.FeatureStream(spec).spec
    honest = stoker.encode.FeatureStream({name: value for name, value in spec.items() if name != "compat"}).spec
    warm_up = max(parsed.emit_from, honest.emit_from)
    bars = audit.check_bars(read_bars(settings.sources, folder / BARS_NAME), gaps=settings.gaps)
    rule = Rule(
        horizon=settings.label_horizon,
        least_volume=settings.min_volume_threshold,
        least_change=settings.least_change,
        compat=settings.labels == "compat",
    )
    values = compute_features(settings, bars, spec)
    labels = _by_series(bars, lambda columns: label_bars(columns["close"], columns.get("volume"), rule, emit_from=warm_up))
    levels = _levels(settings, spec)
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
        spec_hash=parsed.content_hash,
        names=parsed.names,
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
        _disk.remove_folder(path)


def compute_features(settings: Settings, bars: Bars, spec: Mapping[str, Any]) -> Array:
    """The indicators of all bars, or those of a cache for these bars and this spec."""
    if settings.feature_cache is not None and (Path(settings.feature_cache) / "manifest.json").is_file():
        return audit.check_cache(stoker.open(settings.feature_cache), bars, spec)
    store = stoker.Store.from_arrays(lengths=bars.lengths, **bars.columns)
    return stoker.encode.features(store, spec).values


def _levels(settings: Settings, spec: Mapping[str, Any]) -> Levels | None:
    """Which features become ratios to the close."""
    if settings.stationary is not None:
        return levels_of(spec["features"]) if settings.stationary else None
    has_close = any(one["op"].upper() == "IDENT" and one.get("source", "close") == "close" for one in spec["features"])
    return levels_of(spec["features"]) if settings.chosen_model == "banded" and has_close else None


def _by_series(bars: Bars, function: Any) -> Array:
    """The results of a function for the columns of each series, concatenated."""
    parts = [function({name: values[bars.series(i)] for name, values in bars.columns.items()}) for i in range(len(bars.names))]
    return np.concatenate(parts)


def _ready_rows(bars: Bars, values: Array, labels: Array, levels: Levels | None, *, warm_up: int) -> tuple[stoker.Store, Array]:
    """A store of the rows with all features, where a series with gaps becomes several; and the original series of each."""
    offsets = bars.offsets
    place = np.arange(bars.num_bars) - np.repeat(offsets[:-1], bars.lengths)
    ready = (place >= warm_up) & np.isfinite(values).all(axis=1)
    rows = np.flatnonzero(ready)
    if not len(rows):
        raise OptionError(
            f"none of {bars.num_bars:,} bars has all features: these begin at bar {warm_up} of a series. Use more bars, or a spec "
            f"with shorter windows."
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
    usual = settings.run or (BANDED_RUN if settings.chosen_model == "banded" else WINDOWED_RUN)
    rows = int(min(settings.fractions) * int(np.asarray(store.lengths).max())) - warm_up - (reach - 1) - settings.label_horizon
    shape = Shape(context=reach - 1, run=usual if settings.run else max(1, min(usual, rows // 4)))
    longest = int(np.asarray(store.lengths).max())
    if shape.view.length > longest:
        raise OptionError(
            f"a sample has {shape.view.length:,} rows (the model sees {reach:,}, run {shape.run:,}), but the longest series has "
            f"{longest:,} with all features. Lower T, num_layers or run, or use more bars."
        )
    return shape
