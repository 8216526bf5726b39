"""Forecasting: `forecast` with a trained model in the units of the data, `evaluate` over rolling windows, and plots.

A model sees series centred and scaled. In training the scale is that of a whole series; here the future is not known, so it is that
of the context, by the same rule. A missing point of a context counts as its mean.

Evaluation follows the authors' benchmark: series are scaled by their first 70 %, errors are in these units, so that all series count
alike, and targets lie in the last 20 %. Windows include the last one, whose target ends with the series (the authors' data set misses
it). Baselines without a model:

    last point                   repeated
    season of 24, of 168         the last day or week of hourly data, repeated
    season by autocorrelation    the same with the period that the training part of each series shows

They see no more than the model: a season longer than the context is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

import stoker
from stoker.errors import OptionError, SourceNotFoundError
from stoker.experiment import Predicted, TrainedRun
from stoker.extend import Array, check_device
from stoker_recipes.run_folder import RECIPE_NAME, read_settings
from stoker_recipes.time_moe.data import Corpus, open_corpus
from stoker_recipes.time_moe.dataset import LEAST_DEVIATION, CorpusScales, Method, train_ends
from stoker_recipes.time_moe.model import CONFIG, TimeMoe, load_weights, read_size
from stoker_recipes.time_moe.settings import TimeMoeSettings
from stoker_recipes.time_moe.training import find_size

# ---- a model and its forecasts ----

LARGE = 1e140  # sums of squares of larger values may overflow float64


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model."""

    model: TimeMoe
    method: Method  # normalisation of its training
    length: int  # longest context, in points
    source: str  # source of its weights, in words
    step: int = 0  # step of the run


def load_model(path: str | Path, *, device: str = "cpu", latest: bool = False) -> LoadedModel:
    """Load the best model of a run (or the `latest`), or an official checkpoint."""
    folder = Path(path)
    check_device(device)
    if (folder / RECIPE_NAME).is_file():
        settings = read_settings(folder, TimeMoeSettings)
        model = TimeMoe(find_size(settings)).to(device)
        trained = stoker.train.load_trained(model, folder, latest=latest)
        source = f"{folder}, step {trained.step:,}"
        return LoadedModel(model=model.eval(), method=settings.normalize, length=settings.length, source=source, step=trained.step)
    if (folder / CONFIG).is_file():
        model = TimeMoe(read_size(folder)).to(device)
        load_weights(model, folder)
        return LoadedModel(model=model.eval(), method="zero", length=model.size.max_position, source=str(folder))
    what = f"neither a run of Time-MoE ({RECIPE_NAME}) nor a checkpoint ({CONFIG} and model.safetensors)"
    raise SourceNotFoundError(f"{folder} is {what}. Train one: stoker train time-moe --data …")


def forecast(loaded: LoadedModel, context: Array, horizon: int) -> Array:
    """Forecast the `horizon` points after each row of `context` [rows, points], in its units, float64."""
    room = min(loaded.length, loaded.model.size.max_position - horizon)
    if room < 1:
        most = loaded.model.size.max_position - 1
        raise OptionError(
            f"horizon is {horizon:,}, but the model has {most + 1:,} positions. Use at most {most:,}.", parameter="horizon"
        )
    seen = np.asarray(context, dtype=np.float64)[:, -room:]
    empty = np.flatnonzero(~np.isfinite(seen).any(axis=1))
    if len(empty):
        raise OptionError(
            f"row {empty[0]:,} of the context has no known point among its last {seen.shape[1]:,}, which a forecast needs. "
            f"Forecast from an earlier step, use a longer context, or choose another series.",
            parameter="context",
        )
    return _unscaled(loaded, *scale_rows(seen, loaded.method), horizon)


def _unscaled(loaded: LoadedModel, scaled: Array, centers: Array, divisors: Array, horizon: int) -> Array:
    """The forecasts of scaled rows, in their units."""
    device = next(loaded.model.parameters()).device
    forecasts = loaded.model.forecast(torch.from_numpy(scaled).to(device), horizon).double().cpu().numpy()
    return np.asarray(forecasts * divisors[:, None] + centers[:, None])


def scale_rows(context: Array, method: Method) -> tuple[Array, Array, Array]:
    """Rows scaled by themselves with missing points as 0; and the center and divisor of each."""
    rows = np.asarray(context, dtype=np.float64)
    known = np.isfinite(rows)
    counts = np.maximum(known.sum(1), 1)
    filled = np.where(known, rows, 0.0)
    centers, divisors = np.zeros(len(rows)), np.ones(len(rows))
    if method == "zero":
        # In units of the largest value where sums would overflow float64.
        largest = np.abs(filled).max(1, initial=0.0)
        units = np.where(largest > LARGE, largest, 1.0)
        shares = filled / units[:, None]
        centers = shares.sum(1) / counts
        deviations = units * np.sqrt((np.where(known, shares - centers[:, None], 0.0) ** 2).sum(1) / counts)
        centers = centers * units
        divisors = np.where(deviations > LEAST_DEVIATION * np.abs(centers), deviations, 1.0)
    elif method == "max":
        largest = np.abs(filled).max(1)
        divisors = np.where(largest > 0, largest, 1.0)
    scaled = np.where(known, (rows - centers[:, None]) / divisors[:, None], 0.0)
    return scaled.astype(np.float32), centers, divisors


def errors_of(predicted: Array, actual: Array) -> tuple[float, float, int]:
    """MSE and MAE over the known points (not NaN), and their number."""
    apart = (predicted - actual)[np.isfinite(actual)]
    if not len(apart):
        return math.nan, math.nan, 0
    return float(np.mean(apart**2)), float(np.mean(np.abs(apart))), len(apart)


# ---- predictions for `stoker.load(run).predict(data)` ----

HORIZON = 96
MOST_CONTEXT = 512  # points of a context in which="all", as in an evaluation


def open_run(folder: Path, *, latest: bool, device: str) -> TrainedRun:
    """A run or an official checkpoint, for predictions."""
    loaded = load_model(folder, device=device, latest=latest)
    columns = read_settings(folder, TimeMoeSettings).columns if (folder / RECIPE_NAME).is_file() else None
    return TrainedRun(folder=folder, step=loaded.step, model=loaded.model, run=partial(_predict, loaded, columns))


def _predict(
    loaded: LoadedModel,
    columns: Sequence[str] | None,
    data: str | os.PathLike[str] | stoker.Store,
    *,
    which: str,
    horizon: int | None,
    stride: int | None,
    short: str,
    batch_size: int,
) -> list[Predicted]:
    """Forecasts of every series: behind its end, or with "all" from each `stride`-th step that has a whole context before it."""
    horizon = HORIZON if horizon is None else horizon
    corpus = open_corpus(data, columns=columns)
    room = max(1, min(loaded.length, loaded.model.size.max_position - horizon))
    context = room if which == "last" else min(room, MOST_CONTEXT)
    parts = []
    for first, flat in zip(corpus.firsts.tolist(), corpus.flats, strict=False):
        # Contexts of one length are forecast together.
        groups: dict[int, list[tuple[int, int]]] = {}
        for number in range(len(flat)):
            values = corpus.series(first + number)
            ends = [len(values)] if which == "last" else range(context, len(values) + 1, stride or horizon)
            known = [end for end in ends if np.isfinite(values[max(0, end - context) : end]).any()]
            for end in known:
                groups.setdefault(min(end, context), []).append((number, end))
            if not known and short == "error":
                raise OptionError(
                    f"series {corpus.series_name(first + number)!r} of {corpus.name} is too short: it has {len(values):,} points, and a "
                    f"forecast needs {1 if which == 'last' else context:,} with a known one among them. Pass short='skip'.",
                    parameter="short",
                )
        forecasts: list[tuple[int, int, Array]] = []
        for length, places in groups.items():
            for at in range(0, len(places), batch_size):
                some = places[at : at + batch_size]
                rows = np.stack([corpus.series(first + number)[end - length : end] for number, end in some]).astype(np.float64)
                forecasts += [(*place, values) for place, values in zip(some, forecast(loaded, rows, horizon), strict=True)]
        if not forecasts:
            continue
        forecasts.sort(key=lambda forecasted: forecasted[:2])
        series, ends_of = (np.repeat([forecasted[i] for forecasted in forecasts], horizon) for i in range(2))
        ahead = np.tile(np.arange(1, horizon + 1), len(forecasts))
        names = [corpus.series_name(first + number).removesuffix(f":{flat.column}") for number in range(len(flat))]
        time = flat.store.time if flat.store.time in flat.store.schema else None
        predictions = {"prediction": np.concatenate([forecasted[2] for forecasted in forecasts])}
        parts.append(
            Predicted(
                store=flat.store,
                time=time,
                series=series,
                steps=ends_of + ahead - 1,
                column=flat.column,
                values=predictions,
                ahead=ahead,
                names=names,
            )
        )
    if not parts:
        raise OptionError(f"{corpus.name} has no series that can be forecast.", parameter="context")
    return parts


# ---- evaluation ----

PERIODS = (24, 168)  # steps of a day and a week of hourly data
OWN = "season by autocorrelation"
LOOKED_AT = 1 << 20  # points of a series, the last of its training part, whose autocorrelation is computed


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Errors of a forecast without a model; None where the context is shorter than its season."""

    name: str
    mse: float | None
    mae: float | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors over all windows, in units of the standard deviation of each series."""

    mse: float
    mae: float
    windows: int
    baselines: tuple[Baseline, ...]  # repeating the last point first

    @property
    def best_baseline(self) -> Baseline:
        """The baseline with the lowest MSE."""
        return min((baseline for baseline in self.baselines if baseline.mse is not None), key=lambda baseline: baseline.mse or 0.0)


def evaluate(
    loaded: LoadedModel,
    data: str | os.PathLike[str] | stoker.Store | Corpus,
    *,
    context: int = 512,
    horizon: int = 96,
    stride: int = 1,
    test: float = 0.2,
    train: float = 0.7,
    batch_size: int = 64,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """MSE and MAE of forecasts over windows whose targets lie in the last `test` share of each series.

    Missing targets do not count.

    Args:
        loaded: The model, from `load_model`.
        data: Anything that `open_corpus` takes.
        context: Points that the model and the baselines see.
        horizon: Points to forecast.
        stride: Steps between two windows; the last window ends with the series.
        test: Share of each series, at its end, with the targets.
        train: Share of each series, at its start, whose mean and deviation scale it. With `test` at most 1.
        batch_size: Windows at once.
        report: Called with the number of finished windows, and of all.

    Returns:
        The errors of the model and of the baselines.

    Raises:
        OptionError: An option is invalid, or no series is long enough.
    """
    for name, value in (("context", context), ("horizon", horizon), ("stride", stride), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError.expected(name, value, "an integer from 1")
    if not (0 < test < 1 and 0 < train < 1 and train + test <= 1 + 1e-9):
        raise OptionError(
            f"test is {test!r} and train {train!r}; expected shares above 0 with a sum of at most 1.", parameter="test"
        )
    corpus = data if isinstance(data, Corpus) else open_corpus(data)
    most = loaded.model.size.max_position
    if context + horizon > most:
        raise OptionError(
            f"context {context:,} and horizon {horizon:,} need more than the {most:,} positions of the model.", parameter="horizon"
        )
    seasons = {"last point": 1, **{f"season of {period}": period for period in PERIODS}, OWN: 0}
    sums, count, windows = np.zeros((1 + len(seasons), 2)), 0, 0
    first = np.maximum(context, train_ends(corpus, test) - corpus.begins)
    total = int(np.maximum((corpus.lengths - horizon - first) // stride + 1, 0).sum())
    for rows, periods in _batches(corpus, context, horizon, stride, test, train, batch_size):
        seen, target = rows[:, :context], rows[:, context:]
        known = np.isfinite(target)
        # Rows are in units of their series already: "none" only replaces missing points.
        guesses = [_unscaled(loaded, *scale_rows(seen, "none"), horizon)]
        for period in seasons.values():
            chosen = np.full(len(rows), period) if period else periods
            guesses.append(repeat_season(seen, np.minimum(chosen, context), horizon))
        for number, guess in enumerate(guesses):
            apart = (guess - np.where(known, target, 0.0))[known]
            sums[number] += (apart**2).sum(), np.abs(apart).sum()
        count += int(known.sum())
        windows += len(rows)
        report(windows, total)
    if not count:
        raise OptionError(
            f"{corpus.name} has no window of {context:,} + {horizon:,} points that ends in the last {test:.0%} of a series. "
            f"Use a shorter context or horizon.",
            parameter="context",
        )
    (mse, mae), *others = (sums / count).tolist()
    baselines = tuple(
        Baseline(name=name, mse=pair[0] if period <= context else None, mae=pair[1] if period <= context else None)
        for (name, period), pair in zip(seasons.items(), others, strict=True)
    )
    return Score(mse=mse, mae=mae, windows=windows, baselines=baselines)


def _batches(
    corpus: Corpus, context: int, horizon: int, stride: int, test: float, train: float, batch_size: int
) -> Iterator[tuple[Array, Array]]:
    """Windows of context and target, scaled by the training part of their series, float64 [rows, points]; and their periods."""
    ends, trained = train_ends(corpus, test), corpus.begins + (corpus.lengths * train).astype(np.int64)
    scales = CorpusScales(corpus, "zero", ends=trained)
    waiting: list[Array] = []
    periods: list[Array] = []
    for number in range(len(corpus)):
        values, begin = corpus.series(number), int(corpus.begins[number])
        starts = window_starts(int(ends[number]) - begin, len(values), context=context, horizon=horizon, stride=stride)
        if not len(starts):
            continue
        scales.know(np.array([number]))
        scaled = (values.astype(np.float64) - scales.centers[number]) / scales.divisors[number]
        period = find_period(scaled[: int(trained[number]) - begin], context)
        windows = np.lib.stride_tricks.sliding_window_view(scaled, context + horizon)
        for first in range(0, len(starts), batch_size):
            waiting.append(windows[starts[first : first + batch_size] - context])
            periods.append(np.full(len(waiting[-1]), period))
            while sum(map(len, waiting)) >= batch_size:
                together, theirs = np.concatenate(waiting), np.concatenate(periods)
                yield together[:batch_size], theirs[:batch_size]
                waiting, periods = [together[batch_size:]], [theirs[batch_size:]]
    if sum(map(len, waiting)):
        yield np.concatenate(waiting), np.concatenate(periods)


def window_starts(test_begin: int, end: int, *, context: int, horizon: int, stride: int) -> Array:
    """Where the targets of a series begin: within its test part, with a full context before them. The last one ends the series."""
    return np.arange(end - horizon, max(context, test_begin) - 1, -stride, dtype=np.int64)[::-1]


def find_period(values: Array, most: int) -> int:
    """The lag from 2 to `most` with the highest autocorrelation; 1 where there is none.

    It is the highest peak, if that is above chance (1.96 / sqrt(n)).
    """
    known = np.where(np.isfinite(values), values, 0.0)[-LOOKED_AT:]
    known = known - known.mean() if len(known) else known
    last = min(most, len(known) // 2)
    if last < 2 or not known.any():
        return 1
    spectrum = np.fft.rfft(known / np.abs(known).max(), 2 * len(known))
    likeness = np.fft.irfft(spectrum * spectrum.conj())[: last + 2]
    likeness /= likeness[0]
    inner = likeness[2 : last + 1]
    peaks = (inner > likeness[1:last]) & (inner >= likeness[3 : last + 2]) & (inner > 1.96 / np.sqrt(len(known)))
    return int(np.argmax(np.where(peaks, inner, -np.inf))) + 2 if peaks.any() else 1


def repeat_season(seen: Array, periods: Array, horizon: int) -> Array:
    """The last `periods` points of each row, repeated; a missing point counts as the mean, 0."""
    steps = np.arange(horizon)[None] % periods[:, None]
    repeated = np.take_along_axis(seen, seen.shape[1] - periods[:, None] + steps, axis=1)
    return np.where(np.isfinite(repeated), repeated, 0.0)


# ---- plots ----

SHOWN = 3  # length of the past that is shown, in horizons


def plot_forecast(path: str | Path, known: Array, predicted: Array, actual: Array | None, *, title: str) -> Path:
    """Plot a forecast as .svg or .png. `known` is the series before the forecast."""
    past = np.asarray(known, dtype=np.float64)[-max(SHOWN * len(predicted), 32) :]
    now = len(known) - 1
    steps = list(range(now, now + len(predicted) + 1))
    # Curves begin at the last known point, so that there is no gap.
    joined = [past[-1], *predicted.tolist()]
    curves = [
        stoker.train.Curve(colour=0, steps=list(range(now + 1 - len(past), now + 1)), values=past.tolist(), smooth=False),
        stoker.train.Curve(colour=1, steps=steps, values=joined, smooth=False),
    ]
    legend = ["known", "forecast"]
    if actual is not None:
        came = [past[-1], *np.asarray(actual, dtype=np.float64).tolist()]
        curves.append(stoker.train.Curve(colour=2, steps=steps[: len(came)], values=came, dashed=True, smooth=False))
        legend.append("actual")
    panel = stoker.train.Panel(title=f"the next {len(predicted):,} steps", curves=curves)
    return stoker.train.save_plot(path, [panel], title=title, legend=legend)
