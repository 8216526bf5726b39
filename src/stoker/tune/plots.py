"""Plots of tuning, drawn by matplotlib (the extra `plot`) into SVG or PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from stoker.errors import OptionError
from stoker.train.plots import check_plot, save_figure
from stoker.tune.separation import Noise
from stoker.tune.trial import repeat_of, scored

BLUE, RED, GREY = "#0072b2", "#d55e00", "#999999"


def plot_study(
    path: str | Path, study: optuna.Study, trials: Sequence[FrozenTrial], *, importances: Mapping[str, float], noise: Noise | None
) -> Path:
    """Plot history, importances and noise of a study."""
    check_plot(path)
    from matplotlib.figure import Figure

    trials = scored(trials, repeats=True)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        raise OptionError(f"no trial of the study {study.study_name!r} is complete, so there is nothing to plot.")
    figure = Figure(figsize=(15, 4), layout="constrained")
    axes = cast(Any, figure.subplots(1, 3))
    _history(axes[0], trials, study.direction == StudyDirection.MINIMIZE)
    axes[1].barh(list(importances)[::-1], list(importances.values())[::-1], color=BLUE)
    axes[1].set(title="importance of parameters", xlim=(0, 1))
    _noise(axes[2], noise, done)
    figure.suptitle(f"{study.study_name}: {len(trials):,} trials")
    return save_figure(path, figure)


def _history(axes: Any, trials: Sequence[FrozenTrial], less_is_better: bool) -> None:
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    pruned = [trial for trial in trials if trial.state == TrialState.PRUNED]
    axes.plot([trial.number for trial in pruned], [trial.value for trial in pruned], ".", color=GREY, label="pruned (last score)")
    axes.plot([trial.number for trial in done], [trial.value for trial in done], ".", color=BLUE, label="complete")
    best = (np.minimum if less_is_better else np.maximum).accumulate([trial.value or 0.0 for trial in done])
    axes.step([trial.number for trial in done], best, where="post", color=RED, label="best so far")
    axes.set(title="history", xlabel="trial", ylabel="score")
    axes.legend()


def _noise(axes: Any, noise: Noise | None, done: Sequence[FrozenTrial]) -> None:
    firsts = [trial.value for trial in done if repeat_of(trial) is None]
    repeats = [trial.value for trial in done if repeat_of(trial) is not None]
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
