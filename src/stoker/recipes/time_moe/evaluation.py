"""Evaluation: how far forecasts are from what came, over rolling windows of the last part of each series.

As the authors do it, series are centred and scaled by their training part, and errors are told in these units, so that series of
any size count alike. The windows are all there are, the last one too: its target ends with the series.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import stoker
from stoker.errors import OptionError
from stoker.recipes.time_moe.folder import Corpus, open_corpus
from stoker.recipes.time_moe.forecasting import Loaded, scale_rows
from stoker.recipes.time_moe.samples import Scales, train_ends

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors over all windows, in units of each series' deviation."""

    mse: float
    mae: float
    windows: int
    naive_mse: float
    """Of a forecast that repeats the last known point: what a model must beat."""
    naive_mae: float


def window_starts(begin: int, test_begin: int, end: int, *, context: int, horizon: int, stride: int) -> Array:
    """Where the targets of a series begin: within its test part, with a whole context before and a whole target behind.

    The last window ends with the series, whatever the stride.
    """
    first, last = max(begin + context, test_begin), end - horizon
    if last < first:
        return np.zeros(0, dtype=np.int64)
    return np.arange(last, first - 1, -stride, dtype=np.int64)[::-1]


def count_windows(corpus: Corpus, *, context: int, horizon: int, stride: int, test: float) -> int:
    """How many windows there are, over all series."""
    first = np.maximum(context, train_ends(corpus, test) - corpus.begins)
    return int(np.maximum((corpus.lengths - horizon - first) // stride + 1, 0).sum())


def evaluate(
    loaded: Loaded,
    data: str | os.PathLike[str] | stoker.Store | Corpus,
    *,
    context: int = 512,
    horizon: int = 96,
    stride: int = 1,
    test: float = 0.2,
    batch_size: int = 64,
    scale: Literal["series", "context"] = "series",
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """MSE and MAE of forecasts over windows whose targets lie in the last `test` share of each series.

    With `scale="series"` a model sees a series as scaled by its training part; with "context" as forecasts are made, each context
    scaled by itself. Targets that are missing do not count. `report` hears how many windows are done, and of how many.
    """
    for name, value in (("context", context), ("horizon", horizon), ("stride", stride), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} is {value!r}; expected a whole number from 1.")
    if scale not in ("series", "context") or not 0 < test < 1:
        raise OptionError(f"scale is {scale!r} and test {test!r}; expected 'series' or 'context', and a share between 0 and 1.")
    corpus = data if isinstance(data, Corpus) else open_corpus(data)
    most = loaded.model.size.max_position
    if context + horizon > most:
        raise OptionError(f"context {context:,} and horizon {horizon:,} need more than the {most:,} positions of the model.")
    sums, count, windows = np.zeros(4), 0, 0
    total = count_windows(corpus, context=context, horizon=horizon, stride=stride, test=test)
    for rows in _batches(corpus, context, horizon, stride, test, batch_size):
        errors, known = _errors(loaded, rows, context, horizon, scale)
        sums += [np.where(known, one**2 if number % 2 == 0 else np.abs(one), 0).sum() for one in errors for number in range(2)]
        count += int(known.sum())
        windows += len(rows)
        report(windows, total)
    if not count:
        raise OptionError(
            f"{corpus.name} has no window of {context:,} + {horizon:,} points that ends in the last {test:.0%} of a series. "
            f"Give a shorter context or horizon."
        )
    mse, mae, naive_mse, naive_mae = (sums / count).tolist()
    return Score(mse=mse, mae=mae, windows=windows, naive_mse=naive_mse, naive_mae=naive_mae)


def _batches(corpus: Corpus, context: int, horizon: int, stride: int, test: float, batch_size: int) -> Iterator[Array]:
    """Windows of context and target, scaled by the training part of their series, many at a time: float64 [rows, points]."""
    ends = train_ends(corpus, test)
    scales = Scales(corpus, "zero", ends=ends)
    waiting: list[Array] = []
    for number in range(len(corpus)):
        values, begin = corpus.series(number), int(corpus.begins[number])
        starts = window_starts(0, int(ends[number]) - begin, len(values), context=context, horizon=horizon, stride=stride)
        if not len(starts):
            continue
        scales.know(np.array([number]))
        scaled = (values.astype(np.float64) - scales.centers[number]) / scales.divisors[number]
        windows = np.lib.stride_tricks.sliding_window_view(scaled, context + horizon)
        for first in range(0, len(starts), batch_size):
            waiting.append(windows[starts[first : first + batch_size] - context])
            while sum(map(len, waiting)) >= batch_size:
                together = np.concatenate(waiting)
                yield together[:batch_size]
                waiting = [together[batch_size:]] if len(together) > batch_size else []
    if waiting:
        yield np.concatenate(waiting)


def _errors(
    loaded: Loaded, rows: Array, context: int, horizon: int, scale: Literal["series", "context"]
) -> tuple[tuple[Array, Array], Array]:
    """The errors of the model and of repeating the last point, and which targets are known."""
    seen, target = rows[:, :context], rows[:, context:]
    centers, divisors = np.zeros(len(rows)), np.ones(len(rows))
    inputs = np.where(np.isfinite(seen), seen, 0.0).astype(np.float32)
    if scale == "context":
        inputs, centers, divisors = scale_rows(seen, "zero")
    device = next(loaded.model.parameters()).device
    with torch.no_grad():
        found = loaded.model.forecast(torch.from_numpy(inputs).to(device), horizon).double().cpu().numpy()
    known = np.isfinite(target)
    actual = np.where(known, target, 0.0)
    last = np.where(np.isfinite(seen[:, -1:]), seen[:, -1:], 0.0)
    return (found * divisors[:, None] + centers[:, None] - actual, last - actual), known
