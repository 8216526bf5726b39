"""What do a run of TimeHUT and SoftCLT's distances cost on one CPU core, and how accurate are they, against the usual formulation?

Both sides have the same crops and initial weights. Process CPU time; steps in turns. By default on ItalyPowerDemand, which aeon ships;
`--train` and `--test` name other sets of UCR, such as Chinatown's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from benchmarks.before import timehut_loop
from stoker.recipes.timehut.archive import embed_members
from stoker.recipes.timehut.data import fit_scaler, read_series
from stoker.recipes.timehut.dtw import dtw_distances
from stoker.recipes.timehut.evaluate import accuracy, interval
from stoker.recipes.timehut.population import make_population
from stoker.recipes.timehut.settings import make_settings

QUESTION = "What do a run of TimeHUT and SoftCLT's distances cost on one CPU core, and how accurate are they?"


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train")
    parser.add_argument("--test")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--updates", type=int, nargs="*", default=[100])
    parser.add_argument("--plain-updates", type=int, default=100)
    parser.add_argument("--result", default="bench_timehut", help="Name of the result file.")
    options = parser.parse_args()
    if options.small:
        options.seeds, options.rounds, options.updates, options.plain_updates = 1, 1, [10], 10
    torch.set_num_threads(1)
    train, test = (read_series(path) for path in find(options.train, options.test))
    answer: dict[str, Any] = {
        "data": f"{train.name}: {len(train.values)} training and {len(test.values)} test series of {train.values.shape[1]} steps",
        "one update": compare_steps(train.values, rounds=options.rounds),
        "DTW of all pairs": compare_distances(train.values, rounds=options.rounds),
        "runs of the recipe": {f"{count} updates": measure(train, test, options.seeds, count) for count in options.updates},
        "runs of the usual loop": {
            f"{options.plain_updates} updates": measure(train, test, options.seeds, options.plain_updates, plain=True)
        },
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
            found["kernel"] = dtw_distances(series, threads=1, cache=False)

    def loop() -> None:
        found["loop"] = timehut_loop.distances(series)

    seconds = record.interleave({"loop": loop, "kernel": kernel}, rounds=rounds, clock=time.process_time)
    return {
        "faster": record.ratio([20 * one for one in seconds["loop"]], seconds["kernel"]),
        "equal bits": bool((found["kernel"] == found["loop"]).all()),
    }


def measure(train: Any, test: Any, seeds: int, updates: int, *, plain: bool = False) -> dict[str, Any]:
    """Accuracy and CPU time of whole runs, from the arrays to the accuracy."""
    accuracies, seconds = [], []
    for seed in range(seeds):
        settings, start = make_settings("timehut", updates=updates, seed=seed), time.process_time()
        if plain:
            inside, outside = scaled(train.values, train.values), scaled(test.values, train.values)
            network, step = timehut_loop.make_loop(inside, settings, updates)
            for update in range(updates):
                step(update)
            inside, outside = (timehut_loop.embed(network, one, settings.batch_size) for one in (inside, outside))
        else:
            ((inside, outside),) = embed_members(train.values, test.values, [settings], device=torch.device("cpu"))
        accuracies.append(accuracy(inside, train.labels, outside, test.labels))
        seconds.append(time.process_time() - start)
        print(
            f"{'usual' if plain else 'recipe'} {updates} updates, seed {seed}: {accuracies[-1]:.4f} in {seconds[-1]:.2f} s of CPU time",
            flush=True,
        )
    found = interval(np.array(accuracies))
    return {
        "accuracy": {"mean": round(found.mean, 4), "low": round(found.low, 4), "high": round(found.high, 4), "seeds": found.number},
        "each": [round(one, 4) for one in accuracies],
        "CPU seconds of a run": record.spread(seconds),
    }


if __name__ == "__main__":
    main()
