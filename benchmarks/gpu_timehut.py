"""How fast are one run of TimeHUT, a search of 128 configurations, and a whole archive on a GPU?

Needs a GPU, torch and NumPy; scikit-learn for accuracies. Without `--train` the series are random walks of the size of Chinatown, which
takes the same time. Every time contains all work from arrays in host memory to the result, the capture of the graph included; a first run
warms up the libraries and does not count.

    --part run       400 updates of one encoder: seconds, milliseconds per update, memory
    --part search    128 configurations of six parameters, 400 updates each, with their scores
    --part seeds     accuracies of 16 seeds (needs --train and --test)
    --part archive   sizes of the data sets that aeon ships x 3 methods x 16 seeds, without reading files
    --part before    milliseconds per update of the usual formulation
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.recipes.timehut.population import EncoderPopulation, make_population
from stoker.recipes.timehut.settings import METHODS, make_settings

QUESTION = "How fast are one run of TimeHUT, a search of 128 configurations, and a whole archive on a GPU?"
UPDATES = 400
ARCHIVE = {
    "ACSF1": (100, 100, 1460, 1), "ArrowHead": (36, 175, 251, 1), "BasicMotions": (40, 40, 100, 6), "GunPoint": (50, 150, 150, 1),
    "ItalyPowerDemand": (67, 1029, 24, 1), "JapaneseVowels": (270, 370, 29, 12), "OSULeaf": (200, 242, 427, 1),
    "PickupGestureWiimoteZ": (50, 50, 361, 1), "UnitTest": (20, 22, 24, 1),
}  # fmt: skip
"""Training series, test series, steps, channels."""
MEMBER_VALUES = 1 << 31


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few updates, also without a GPU; writes no result file.")
    parser.add_argument("--part", default="run,search,archive,before")
    parser.add_argument("--train", help="A .tsv file of UCR.")
    parser.add_argument("--test", help="A .tsv file of UCR.")
    parser.add_argument("--out", help="Where the result goes. [default: benchmarks/results/gpu_timehut.json]")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        raise SystemExit("torch sees no GPU here. Use --small to see that all parts run.")
    train, labels = read(options.train) if options.train else walks(20, 24, 1)
    test, test_labels = read(options.test) if options.test else walks(345, 24, 1)
    mean, std = train.mean(), train.std()
    setting = Setting((train - mean) / std, labels, (test - mean) / std, test_labels, device, small=options.small)
    parts: dict[str, Callable[[Setting], Any]] = {
        "run": run, "search": search, "seeds": seeds, "archive": archive, "before": before
    }  # fmt: skip
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "torch": torch.__version__}
    for name in options.part.split(","):
        answer[name] = parts[name](setting)
        print(json.dumps({name: answer[name]}), flush=True)
    if not options.small:
        from benchmarks import record

        record.save("gpu_timehut", QUESTION, answer, path=Path(options.out) if options.out else None)


class Setting:
    def __init__(self, train: Any, labels: Any, test: Any, test_labels: Any, device: str, *, small: bool) -> None:
        self.train, self.labels, self.test, self.test_labels, self.device = train, labels, test, test_labels, device
        self.updates, self.members, self.num_seeds = (4, 4, 2) if small else (UPDATES, 128, 16)
        self.small = small

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], Any], rounds: int = 3) -> tuple[Any, float]:
        """The result and the median of the seconds; one round more goes first."""
        taken, found = [], None
        for _ in range(1 + (1 if self.small else rounds)):
            self.wait()
            begin = time.perf_counter()
            found = work()
            self.wait()
            taken.append(time.perf_counter() - begin)
        return found, float(np.median(taken[1:]))


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(path, delimiter="\t")
    return table[:, 1:, None].astype(np.float32), table[:, 0].astype(int)


def walks(num: int, steps: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num)
    labels = np.arange(num) % 2
    return (rng.normal(size=(num, steps, channels)).cumsum(1) + labels[:, None, None]).astype(np.float32), labels


def run(setting: Setting) -> dict[str, Any]:
    """One encoder with temperature and angular margin, from arrays to representations."""
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def work() -> EncoderPopulation:
        population = make_population(setting.train, [make_settings("timehut", updates=setting.updates)], device=setting.device)
        population.advance(setting.updates)
        population.encode(setting.test)
        return population

    population, seconds = setting.timed(work)
    begun = make_population(setting.train, [make_settings("timehut", updates=setting.updates)], device=setting.device)
    begun.advance(1)
    setting.wait()
    begin = time.perf_counter()
    begun.advance(setting.updates)
    setting.wait()
    each = (time.perf_counter() - begin) / (setting.updates - 1)
    memory = torch.cuda.max_memory_allocated() / 2**20 if setting.device == "cuda" else 0.0
    return {
        "seconds": seconds,
        "ms per update": 1000 * each,
        "MiB": memory,
        "finite": bool(torch.isfinite(population.average()).all()),
    }


def search(setting: Setting) -> dict[str, Any]:
    """Configurations of six parameters with common random numbers, trained to the end and scored."""
    from stoker.recipes.timehut.search import SearchObjective, draw_configs

    configs = draw_configs("combined", setting.members)

    def work() -> list[float]:
        objective = SearchObjective(
            values=setting.train,
            labels=setting.labels,
            settings=make_settings("timehut"),
            rungs=(setting.updates,),
            device=setting.device,
        )
        return objective.start(configs, seeds=[0] * len(configs)).advance(setting.updates)

    scores, seconds = setting.timed(work, rounds=2)
    return {"configurations": len(configs), "seconds": seconds, "different scores": len({round(one, 9) for one in scores})}


def seeds(setting: Setting) -> dict[str, Any]:
    """Accuracies of all seeds, trained as one population."""
    from stoker.recipes.timehut.evaluate import accuracy

    found = {}
    for method in ("ts2vec", "timehut"):
        members = [make_settings(method, updates=setting.updates, seed=seed) for seed in range(setting.num_seeds)]
        population = make_population(setting.train, members, device=setting.device)
        population.advance(setting.updates)
        inside, outside = population.encode(setting.train), population.encode(setting.test)
        each = [accuracy(a, setting.labels, b, setting.test_labels) for a, b in zip(inside, outside, strict=True)]
        found[method] = {"mean": float(np.mean(each)), "each": each}
    return found


def archive(setting: Setting) -> dict[str, Any]:
    """Data sets of the sizes of aeon's, all methods and seeds; SoftCLT's distances included, SVMs not."""
    taken = {}
    for name, (num, tests, steps, channels) in ARCHIVE.items():
        if setting.small and steps > 100:
            continue
        train, test = walks(num, steps, channels)[0], walks(tests, steps, channels)[0]
        members = [
            make_settings(method, seed=seed, updates=setting.updates if setting.small else 0)
            for method in METHODS
            for seed in range(setting.num_seeds)
        ]

        def work(train: Any = train, test: Any = test, members: Any = members) -> None:
            soft = targets(train)
            at_once = max(1, MEMBER_VALUES // (16 * train.shape[1] * 320 * 12))
            for begin in range(0, len(members), at_once):
                some = members[begin : begin + at_once]
                wanted = [soft if one.method == "softclt" else None for one in some]
                population = make_population(train, some, targets=wanted, device=setting.device)
                population.advance(population.num_updates)
                population.encode(train)
                population.encode(test)

        setting.wait()
        begin = time.perf_counter()
        work()
        setting.wait()
        taken[name] = time.perf_counter() - begin
        print(f"{name}: {taken[name]:.1f} s", flush=True)
    return {"seconds": sum(taken.values()), "each": taken}


def targets(train: np.ndarray) -> np.ndarray:
    """SoftCLT's targets by the recipe's kernel, or random ones where numba or xxhash is missing, as they do not change the time."""
    try:
        from stoker.recipes.timehut.dtw import instance_targets

        return instance_targets(train, tau=0.1)
    except ImportError:
        return np.random.default_rng(0).uniform(size=(len(train), len(train)))


def before(setting: Setting) -> dict[str, Any]:
    """The usual formulation, eager, with its host work and synchronisations."""
    from benchmarks.before import timehut_loop

    count = 3 if setting.small else 40
    torch.set_default_device(setting.device)
    try:
        _, step = timehut_loop.make_loop(setting.train, make_settings("timehut", updates=count), count, device=setting.device)
        for update in range(count // 3):
            step(update)
        setting.wait()
        begin = time.perf_counter()
        for update in range(count // 3, count):
            step(update)
        setting.wait()
        return {"ms per update": 1000 * (time.perf_counter() - begin) / (count - count // 3)}
    finally:
        torch.set_default_device(None)


if __name__ == "__main__":
    main()
