"""How good is what `stoker.tune.search` finds in a number of seconds, and what does it cost per trial?

Quality: small training tasks with reports after each epoch, the same seconds for `stoker.tune.search`, plain Optuna (TPE with its
default pruner) and random search, paired over seeds. `stoker.tune.search` uses the same sampler and pruner, so a difference to plain
Optuna would be a mistake here. The clock of all of them counts epochs, 10 ms each, so results do not depend on what else the machine
does; the time that a method takes itself is not counted. The score of a method is the validation loss of its best configuration,
trained again with other seeds. Overhead: trials of a trivial function, in CPU time, in memory and in a journal file.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage

from benchmarks import record
from stoker._clock import now_ns
from stoker.tune import budget, search

QUESTION = "Is a search at equal seconds as good as plain Optuna TPE and better than random search, and what does a trial cost?"
SPACE = {
    "lr": ("log", 1e-5, 1.0),
    "weight_decay": ("log", 1e-6, 1.0),
    "width": ("int_log", 4, 64),
    "dropout": ("uniform", 0.0, 0.6),
    "optimizer": ["sgd", "adam"],
}
TASKS = ("waves", "steps", "linear", "product", "noisy")
EPOCHS, EPOCH_NS, ROWS = 16, 10_000_000, 64
SECONDS, SEEDS, FINAL_SEEDS = 4.8, 10, 5
"""30 full trials fit into the seconds."""
Report = Callable[[float, int], bool]


class Clock:
    """What the methods see as time."""

    def __init__(self) -> None:
        self.began, self.spent = now_ns(), 0

    def now(self) -> int:
        return self.began + self.spent


@functools.cache
def data_of(task: str) -> tuple[np.ndarray, ...]:
    """Inputs and targets of training and validation."""
    rng = np.random.default_rng(sum(map(ord, task)))
    x = rng.standard_normal((768, 12))
    noise = 0.2
    if task == "waves":
        y = np.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    elif task == "steps":
        y = (x[:, :3].sum(1, keepdims=True) > 0) + 0.3 * x[:, 3:4]
    elif task == "product":
        y = np.sign(x[:, :1] * x[:, 1:2]) + 0.3 * x[:, 2:3]
    else:
        y, noise = x @ rng.standard_normal((12, 1)) / 4, 1.0 if task == "noisy" else noise
    y = y + noise * rng.standard_normal(y.shape)
    return tuple(one.astype(np.float32) for one in (x[:512], y[:512], x[512:], y[512:]))


def train(task: str, params: Mapping[str, Any], seed: int, report: Report) -> float:
    """The validation loss of a hidden layer after the last epoch; `report` returns whether to stop."""
    rng = np.random.default_rng([seed, 7])
    x, y, x_valid, y_valid = data_of(task)
    width, p, lr, decay = params["width"], params["dropout"], np.float32(params["lr"]), np.float32(params["weight_decay"])
    shapes = [((12, width), 12), ((width,), 12), ((width, 1), width), ((1,), width)]
    weights = [(rng.uniform(-1, 1, shape) / inputs**0.5).astype(np.float32) for shape, inputs in shapes]
    means, squares = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    loss, update = math.inf, 0
    with np.errstate(all="ignore"):
        for epoch in range(1, EPOCHS + 1):
            for rows in np.split(rng.permutation(len(x)), len(x) // ROWS):
                inner = x[rows] @ weights[0] + weights[1]
                kept = (inner > 0) * (rng.random(inner.shape, dtype=np.float32) >= p) / np.float32(1 - p)
                hidden = inner * kept
                error = (hidden @ weights[2] + weights[3] - y[rows]) * np.float32(2 / ROWS)
                back = error @ weights[2].T * kept
                gradients = [x[rows].T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
                update += 1
                for k, gradient in enumerate(gradients):
                    gradient = gradient + decay * weights[k]
                    if params["optimizer"] == "adam":
                        means[k] += np.float32(0.1) * (gradient - means[k])
                        squares[k] += np.float32(0.001) * (gradient**2 - squares[k])
                        scale = np.sqrt(squares[k] / np.float32(1 - 0.999**update)) + np.float32(1e-8)
                        gradient = means[k] / np.float32(1 - 0.9**update) / scale
                    weights[k] = weights[k] - lr * gradient
            found = np.maximum(x_valid @ weights[0] + weights[1], 0) @ weights[2] + weights[3]
            loss = float(min(np.nan_to_num(((found - y_valid) ** 2).mean(), nan=1e6, posinf=1e6), 1e6))
            if report(loss, epoch):
                break
    return loss


def by_stoker(task: str, seed: int, seconds: float) -> dict[str, Any]:
    clock = Clock()

    def objective(params: Mapping[str, Any], trial: Any) -> float:
        def report(loss: float, epoch: int) -> bool:
            clock.spent += EPOCH_NS
            trial.report(loss, epoch)
            return bool(trial.should_prune())

        return train(task, params, 0, report)

    budget.now_ns = clock.now  # type: ignore[attr-defined]
    try:
        study = search(objective, SPACE, budget=float(seconds), seed=seed, progress=False)
    finally:
        budget.now_ns = now_ns  # type: ignore[attr-defined]
    return {"params": study.best.params, "trials": len(study.trials)}


def ask_params(trial: optuna.Trial) -> dict[str, Any]:
    """`SPACE`, asked from Optuna."""
    return {
        "lr": trial.suggest_float("lr", 1e-5, 1.0, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1.0, log=True),
        "width": trial.suggest_int("width", 4, 64, log=True),
        "dropout": trial.suggest_float("dropout", 0.0, 0.6),
        "optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam"]),
    }


def by_optuna(task: str, seed: int, seconds: float, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
    clock = Clock()

    def objective(trial: optuna.Trial) -> float:
        params = ask_params(trial)

        def report(loss: float, epoch: int) -> bool:
            clock.spent += EPOCH_NS
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
            return False

        return train(task, params, 0, report)

    def stop(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if clock.spent >= seconds * 1e9:
            study.stop()

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=1_000_000, callbacks=[stop])
    return {"params": study.best_params, "trials": len(study.trials)}


def quality(seconds: float, seeds: int) -> dict[str, Any]:
    """Of all tasks, each in a process of its own: their clocks do not see each other."""
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return dict(zip(TASKS, pool.map(quality_of, TASKS, [seconds] * len(TASKS), [seeds] * len(TASKS)), strict=True))


def quality_of(task: str, seconds: float, seeds: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    methods: dict[str, Callable[[int], dict[str, Any]]] = {
        "stoker": lambda seed: by_stoker(task, seed, seconds),
        "optuna TPE": lambda seed: by_optuna(task, seed, seconds, optuna.samplers.TPESampler(seed=seed)),
        "random": lambda seed: by_optuna(task, seed, seconds, optuna.samplers.RandomSampler(seed=seed)),
    }
    scores: dict[str, list[float]] = {name: [] for name in methods}
    trials: dict[str, list[int]] = {name: [] for name in methods}
    for seed in range(seeds):
        for name, run in methods.items():
            found = run(seed)
            again = [train(task, found["params"], 100 + final, lambda loss, epoch: False) for final in range(FINAL_SEEDS)]
            scores[name].append(float(f"{statistics.mean(again):.5g}"))
            trials[name].append(found["trials"])
        print(task, seed, {name: found[-1] for name, found in scores.items()}, flush=True)
    return {
        "scores": scores,
        "trials": {name: statistics.median(found) for name, found in trials.items()},
        "mean loss": {name: float(f"{statistics.mean(found):.4g}") for name, found in scores.items()},
        "loss relative to optuna TPE": {
            name: record.ratio(found, scores["optuna TPE"]) for name, found in scores.items() if name != "optuna TPE"
        },
        "loss relative to random": {
            name: record.ratio(found, scores["random"]) for name, found in scores.items() if name != "random"
        },
    }


def overhead(count: int, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per trial of a function that does nothing, opening of the study included."""

    def nothing(params: Mapping[str, Any]) -> float:
        return float(params["lr"] + params["dropout"])

    def ask(trial: optuna.Trial) -> float:
        return nothing(ask_params(trial))

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            journals = [Path(folder) / f"{side}{number}.journal" for side in ("stoker", "optuna")]
            sides: dict[str, Callable[[], Any]] = {
                "stoker, memory": lambda: search(nothing, SPACE, budget=count, progress=False),
                "optuna TPE, memory": lambda: optuna.create_study().optimize(ask, n_trials=count),
                "stoker, journal": lambda path=journals[0]: search(nothing, SPACE, budget=count, progress=False, storage=path),
                "optuna TPE, journal": lambda path=journals[1]: optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(path)))
                ).optimize(ask, n_trials=count),
            }
            for name, run in sides.items():
                begin = time.process_time()
                run()
                if number:  # the first round imports
                    found.setdefault(name, []).append(1000 * (time.process_time() - begin) / count)
    return {name: record.spread(values) for name, values in found.items()}


def main() -> None:
    options = record.arguments(QUESTION)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = options.small
        answer = {
            "seconds": SECONDS / 5 if small else SECONDS,
            "quality": quality(SECONDS / 5 if small else SECONDS, 1 if small else SEEDS),
            "overhead, CPU ms per trial": overhead(20 if small else 200, 1 if small else options.rounds or 5),
        }
        if not small:
            record.save("bench_tune_search", QUESTION, answer)
        else:
            print(answer)


if __name__ == "__main__":
    main()
