"""How good is what `stoker.tune.search` finds in a number of seconds, and what does it cost per trial?

Quality: three small training tasks with reports after each epoch, the same seconds for `stoker.tune.search`, plain Optuna (TPE with its
default pruner) and random search, paired over seeds; and `stoker.tune.search` with a fifth of the seconds. The score of a method is
the validation loss of its best configuration, trained again with other seeds. Overhead: 1,000 trials of a trivial function.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import torch
from torch import nn

from benchmarks import record
from stoker.tune import search

QUESTION = "Is a search at equal seconds at least as good as plain Optuna TPE and random search, and what does a trial cost?"
SPACE = {
    "lr": ("log", 1e-5, 1.0),
    "weight_decay": ("log", 1e-6, 1.0),
    "width": ("int_log", 4, 64),
    "dropout": ("uniform", 0.0, 0.6),
    "optimizer": ["sgd", "adam"],
}
EPOCHS, SECONDS, SEEDS, FINAL_SEEDS = 16, 3.0, 5, 3
Report = Callable[[float, int], bool]


def data_of(task: str) -> tuple[torch.Tensor, ...]:
    """Inputs and targets of training and validation."""
    generator = torch.Generator().manual_seed(sum(map(ord, task)))
    x = torch.randn(768, 12, generator=generator)
    if task == "waves":
        y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    elif task == "steps":
        y = (x[:, :3].sum(1, keepdim=True) > 0).float() + 0.3 * x[:, 3:4]
    else:
        y = x @ torch.randn(12, 1, generator=generator) / 4
    y = y + 0.2 * torch.randn(y.shape, generator=generator)
    return x[:512], y[:512], x[512:], y[512:]


def train(task: str, params: Mapping[str, Any], seed: int, report: Report) -> float:
    """The validation loss after the last epoch; `report` returns whether to stop."""
    torch.manual_seed(seed)
    x, y, x_valid, y_valid = data_of(task)
    width = params["width"]
    model = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Dropout(params["dropout"]), nn.Linear(width, 1))
    kind = torch.optim.SGD if params["optimizer"] == "sgd" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=params["lr"], weight_decay=params["weight_decay"])
    loss = math.inf
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = min(float(nn.functional.mse_loss(model(x_valid), y_valid).nan_to_num(1e6, 1e6)), 1e6)
        if report(loss, epoch):
            break
    return loss


def by_stoker(task: str, seed: int, seconds: float) -> dict[str, Any]:
    def objective(params: Mapping[str, Any], trial: Any) -> float:
        def report(loss: float, epoch: int) -> bool:
            trial.report(loss, epoch)
            return bool(trial.should_prune())

        return train(task, params, 0, report)

    study = search(objective, SPACE, budget=float(seconds), seed=seed, progress=False)
    return {"params": study.best.params, "trials": len(study.trials)}


def by_optuna(task: str, seed: int, seconds: float, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
    def objective(trial: optuna.Trial) -> float:
        params = {
            "lr": trial.suggest_float("lr", 1e-5, 1.0, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1.0, log=True),
            "width": trial.suggest_int("width", 4, 64, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.6),
            "optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam"]),
        }

        def report(loss: float, epoch: int) -> bool:
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
            return False

        return train(task, params, 0, report)

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, timeout=seconds)
    return {"params": study.best_params, "trials": len(study.trials)}


def quality(seconds: float, seeds: int) -> dict[str, Any]:
    methods: dict[str, Callable[[str, int], dict[str, Any]]] = {
        "stoker": lambda task, seed: by_stoker(task, seed, seconds),
        "optuna TPE": lambda task, seed: by_optuna(task, seed, seconds, optuna.samplers.TPESampler(seed=seed)),
        "random": lambda task, seed: by_optuna(task, seed, seconds, optuna.samplers.RandomSampler(seed=seed)),
        "stoker, a fifth": lambda task, seed: by_stoker(task, seed, seconds / 5),
    }
    answer: dict[str, Any] = {}
    for task in ("waves", "steps", "linear"):
        scores: dict[str, list[float]] = {name: [] for name in methods}
        trials: dict[str, list[int]] = {name: [] for name in methods}
        for seed in range(seeds):
            for name, run in methods.items():
                found = run(task, seed)
                again = [train(task, found["params"], 100 + final, lambda loss, epoch: False) for final in range(FINAL_SEEDS)]
                scores[name].append(float(f"{statistics.mean(again):.5g}"))
                trials[name].append(found["trials"])
        answer[task] = {
            "scores": scores,
            "trials": {name: statistics.median(found) for name, found in trials.items()},
            "loss relative to optuna TPE": {
                name: record.ratio(found, scores["optuna TPE"]) for name, found in scores.items() if name != "optuna TPE"
            },
            "loss relative to random": {
                name: record.ratio(found, scores["random"]) for name, found in scores.items() if name != "random"
            },
        }
    return answer


def overhead(count: int, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per trial of a function that does nothing, opening of the study included.

    Optuna's cost per trial grows with their number; it gets fewer, to its advantage.
    """

    def nothing(params: Mapping[str, Any]) -> float:
        return float(params["lr"] + params["dropout"])

    def ask(trial: optuna.Trial) -> float:
        return trial.suggest_float("lr", 1e-5, 1.0, log=True) + trial.suggest_float("dropout", 0.0, 0.6)

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            sides: dict[str, tuple[int, Callable[[int], Any]]] = {
                "stoker, memory": (count, lambda n: search(nothing, SPACE, budget=n, progress=False)),
                "stoker, sqlite": (
                    count,
                    lambda n, number=number: search(
                        nothing, SPACE, budget=n, progress=False, storage=Path(folder) / f"s{number}.db"
                    ),
                ),
                "optuna TPE, memory": (count // 4, lambda n: optuna.create_study().optimize(ask, n_trials=n)),
                "optuna TPE, sqlite": (
                    count // 10,
                    lambda n, number=number: optuna.create_study(storage=f"sqlite:///{folder}/o{number}.db").optimize(
                        ask, n_trials=n
                    ),
                ),
            }
            for name, (trials, run) in sides.items():
                begin = time.process_time()
                run(trials)
                if number:  # the first round imports
                    found.setdefault(name, []).append(1000 * (time.process_time() - begin) / trials)
    return {name: record.spread(values) for name, values in found.items()}


def main() -> None:
    options = record.arguments(QUESTION)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = options.small
        answer = {
            "overhead, CPU ms per trial": overhead(100 if small else 1000, 1 if small else options.rounds or 3),
            "seconds": 0.5 if small else SECONDS,
            "quality": quality(0.5 if small else SECONDS, 1 if small else SEEDS),
        }
        if not small:
            record.save("bench_tune_search", QUESTION, answer)
        else:
            print(answer)


if __name__ == "__main__":
    main()
