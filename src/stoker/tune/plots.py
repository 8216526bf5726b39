"""Plots of tuning, drawn by matplotlib (the extra `plot`) into SVG or PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.train.plots import check_plot, save_figure
from stoker.tune.separation import Noise
from stoker.tune.space import Space
from stoker.tune.trial import StudyTrial

BLUE, RED, GREY = "#0072b2", "#d55e00", "#999999"
MOST_LINES = 500
"""Of parallel coordinates: the best ones and some of the others."""


def plot_study(
    path: str | Path,
    *,
    name: str,
    direction: str,
    trials: Sequence[StudyTrial],
    importances: Mapping[str, float],
    noise: Noise | None,
) -> Path:
    """History, importances, parallel coordinates and noise of a study."""
    check_plot(path)
    from matplotlib.figure import Figure

    done = [one for one in trials if one.state == "complete" and one.value is not None and math.isfinite(one.value)]
    if not done:
        raise OptionError(f"none of the {len(trials)} trials of the study {name!r} is complete, so there is nothing to plot.")
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes: Any = figure.subplots(2, 2)
    sign = 1.0 if direction == "minimize" else -1.0
    _history(axes[0][0], trials, done, sign)
    axes[0][1].barh(list(importances)[::-1], list(importances.values())[::-1], color=BLUE)
    axes[0][1].set(title="importance of parameters", xlim=(0, 1))
    _parallel(axes[1][0], [one for one in done if one.repeat_of is None], sign)
    _noise(axes[1][1], noise, done)
    figure.suptitle(f"{name}: {len(trials):,} trials")
    return save_figure(path, figure)


def _history(axes: Any, trials: Sequence[StudyTrial], done: Sequence[StudyTrial], sign: float) -> None:
    pruned = [one for one in trials if one.state == "pruned" and one.score is not None]
    axes.plot([one.number for one in pruned], [one.score for one in pruned], ".", color=GREY, label="pruned (last score)")
    axes.plot([one.number for one in done], [one.value for one in done], ".", color=BLUE, label="complete")
    best = (np.minimum if sign > 0 else np.maximum).accumulate([one.value or 0.0 for one in done])
    axes.step([one.number for one in done], best, where="post", color=RED, label="best so far")
    axes.set(title="history", xlabel="trial", ylabel="score")
    axes.legend()


def _parallel(axes: Any, done: Sequence[StudyTrial], sign: float) -> None:
    """A line per trial: its parameters, each scaled to 0..1, in the colour of its rank."""
    order = sorted(done, key=lambda one: sign * (one.value or 0.0))[:MOST_LINES]
    names = list(dict.fromkeys(name for one in order for name in one.params))
    for rank in range(len(order) - 1, -1, -1):
        one = order[rank]
        places = [_place(one, name) for name in names]
        shade = rank / max(1, len(order) - 1)
        axes.plot(
            range(len(names)), places, color=RED if rank < max(1, len(order) // 10) else BLUE, alpha=0.9 - 0.8 * shade, lw=0.8
        )
    axes.set_xticks(range(len(names)), names)
    axes.set(title="parallel coordinates (best tenth in red)", ylim=(0, 1), yticks=[])


def _place(trial: StudyTrial, name: str) -> float:
    if name not in trial.params or name not in trial.distributions:
        return math.nan
    return Space({name: trial.distributions[name]}).to_point(trial.params)[0]


def _noise(axes: Any, noise: Noise | None, done: Sequence[StudyTrial]) -> None:
    firsts = [one.value for one in done if one.repeat_of is None]
    repeats = [one.value for one in done if one.repeat_of is not None]
    axes.plot(firsts, np.linspace(0.2, 0.8, len(firsts)), ".", color=BLUE, label="configurations")
    axes.plot(repeats, np.full(len(repeats), 1.0), "o", color=RED, label="repeated with other seeds")
    title = "noise: nothing was repeated" if noise is None else f"noise {noise.noise:.3g} against spread {noise.spread:.3g}"
    axes.set(title=title, xlabel="score", yticks=[], ylim=(0, 1.2))
    axes.legend()


def plot_batch_sizes(
    path: str | Path, *, fitting: Mapping[int, tuple[float, int]], too_large: Sequence[int], chosen: int, loader: float | None
) -> Path:
    """Throughput and memory over the batch size; `fitting` has samples per second and bytes by size."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(list(fitting), [rate for rate, _ in fitting.values()], "o-", color=BLUE, label="samples per second")
    axes.axvline(chosen, color=RED, label=f"chosen: {chosen:,}")
    if loader is not None:
        axes.axhline(loader, color=GREY, ls="--", label="what the loader delivers")
    for size in too_large:
        axes.axvline(size, color=GREY, ls=":", label=f"does not fit: {size:,}")
    axes.set(xlabel="batch size", ylabel="samples per second", ylim=(0, None))
    axes.set_xscale("log", base=2)
    other = axes.twinx()
    other.plot(list(fitting), [memory / 1e9 for _, memory in fitting.values()], ".--", color=GREY)
    other.set_ylabel("memory of a step, GB (dashed)")
    axes.legend()
    return save_figure(path, figure)
