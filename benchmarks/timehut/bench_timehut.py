"""What do a run of TimeHUT and SoftCLT's distances cost on one CPU core, and how accurate are they, against the usual formulation?

Both sides have the same crops and initial weights. Process CPU time; steps in turns. By default on ItalyPowerDemand, which aeon ships;
`--train` and `--test` name other sets of UCR, such as Chinatown's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from benchmarks.before import timehut_loop
from benchmarks.timehut.archive import interval
from stoker_recipes.timehut.data import fit_scaler, read_series
from stoker_recipes.timehut.dtw import dtw_distances
from stoker_recipes.timehut.evaluation import accuracy
from stoker_recipes.timehut.population import make_population
from stoker_recipes.timehut.settings import make_settings

QUESTION = "What do a run of TimeHUT and SoftCLT's distances cost on one CPU core, and how accurate are they?"
PARTS = ("step", "dtw", "recipe", "usual")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train")
    parser.add_argument("--test")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--updates", type=int, nargs="*", default=[100, 200, 400], help="Lengths of a run, all along one run.")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--result", default="bench_timehut", help="Name of the result file.")
    options = parser.parse_args()
    if options.small:
        options.seeds, options.rounds, options.updates = 1, 1, [5, 10]
    torch.set_num_threads(1)
    train, test = (read_series(path) for path in find(options.train, options.test))
    work: dict[str, Callable[[], Any]] = {
        "one update": lambda: compare_steps(train.values, rounds=options.rounds),
        "DTW of all pairs": lambda: compare_distances(train.values, rounds=options.rounds),
        "runs of the recipe": lambda: measure(train, test, options.seeds, options.updates),
        "runs of the usual loop": lambda: measure(train, test, options.seeds, options.updates, plain=True),
    }
    answer: dict[str, Any] = {
        "data": f"{train.name}: {len(train.values)} training and {len(test.values)} test series of {train.values.shape[1]} steps",
        **{name: run() for part, (name, run) in zip(PARTS, work.items(), strict=True) if part in options.parts},
    }
    print(answer) if options.small else record.save(options.result, QUESTION, answer)


def find(train: str | None, test: str | None) -> tuple[Path, Path]:
    if train and test:
        return Path(train), Path(test)
    import aeon.datasets

    folder = Path(aeon.datasets.__file__).parent / "data" / "ItalyPowerDemand"
    return folder / "ItalyPowerDemand_TRAIN.ts", folder / "ItalyPowerDemand_TEST.ts"


def scaled(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    scaler = fit_scaler(by)
    return values if scaler is None else scaler(values)


def compare_steps(values: np.ndarray, *, rounds: int, updates: int = 20) -> dict[str, Any]:
    """CPU time of one update, averaged over the same crops."""
    data, settings = scaled(values, values), make_settings("timehut", updates=(rounds + 1) * updates)
    _, step = timehut_loop.make_loop(data, settings, settings.updates)
    population = make_population(data, [settings])
    done = {"usual": 0}

    def usual() -> None:
        for update in range(done["usual"], done["usual"] + updates):
            step(update)
        done["usual"] += updates

    sides = {"usual": usual, "recipe": lambda: population.advance(population.updates + updates)}
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    answer: dict[str, Any] = {
        f"{name}, ms": record.spread([1000 * one / updates for one in times]) for name, times in seconds.items()
    }
    return {**answer, "faster": record.ratio(seconds["usual"], seconds["recipe"])}


def compare_distances(values: np.ndarray, *, rounds: int) -> dict[str, Any]:
    """CPU time of all DTW distances: a double loop over tslearn's function, and the kernel on one thread."""
    series = np.nan_to_num(values[:67]).astype(np.float64)
    found: dict[str, np.ndarray] = {}

    def kernel() -> None:
        for _ in range(20):  # one call is too short for the clock
            found["kernel"] = dtw_distances(series, threads=1)

    def loop() -> None:
        found["loop"] = timehut_loop.distances(series)

    seconds = record.interleave({"loop": loop, "kernel": kernel}, rounds=rounds, clock=time.process_time)
    return {
        "faster": record.ratio([20 * second for second in seconds["loop"]], seconds["kernel"]),
        "equal bits": bool((found["kernel"] == found["loop"]).all()),
    }


def measure(train: Any, test: Any, seeds: int, lengths: list[int], *, plain: bool = False) -> dict[str, Any]:
    """Accuracy and CPU time of runs of several lengths, from the arrays to the accuracy; shorter runs are the beginning of longer ones."""
    accuracies: dict[int, list[float]] = {length: [] for length in lengths}
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    inside, outside = (scaled(one.values, train.values) for one in (train, test))
    for seed in range(seeds):
        settings, training = make_settings("timehut", updates=max(lengths), seed=seed), time.process_time()
        advance, embed = (plain_run if plain else recipe_run)(inside, settings)
        trained = time.process_time() - training
        for length in sorted(lengths):
            start = time.process_time()
            advance(length)
            trained, start = trained + time.process_time() - start, time.process_time()
            accuracies[length].append(accuracy(embed(inside), train.labels, embed(outside), test.labels))
            seconds[length].append(trained + time.process_time() - start)
            print(f"{'usual' if plain else 'recipe'}, {length} updates, seed {seed}: {accuracies[length][-1]:.4f}", flush=True)
    found = {length: interval(np.array(each)) for length, each in accuracies.items()}
    return {
        f"{length} updates": {
            "accuracy": {"mean": round(one.mean, 4), "low": round(one.low, 4), "high": round(one.high, 4), "seeds": one.number},
            "each": [round(each, 4) for each in accuracies[length]],
            "CPU seconds of a run": record.spread(seconds[length]),
        }
        for length, one in found.items()
    }


def recipe_run(data: np.ndarray, settings: Any) -> tuple[Callable[[int], Any], Callable[[np.ndarray], np.ndarray]]:
    population = make_population(data, [settings])
    return population.advance, lambda values: population.encode(values)[0]


def plain_run(data: np.ndarray, settings: Any) -> tuple[Callable[[int], Any], Callable[[np.ndarray], np.ndarray]]:
    network, step = timehut_loop.make_loop(data, settings, settings.updates)
    done = iter(range(settings.updates))

    def advance(updates: int) -> None:
        for update in done:
            step(update)
            if update + 1 == updates:
                return

    return advance, lambda values: timehut_loop.embed(network, values, settings.batch_size)


if __name__ == "__main__":
    main()
