"""How fast are one run of TimeHUT, a search of 128 configurations, and a whole archive on a GPU?

Needs a GPU; scikit-learn for accuracies, aeon for the archive. Without `--train` the series are random walks of the size of Chinatown, that
take the same time. Every time contains all work from arrays in host memory to the result, the capture of the graph included. A first round
loads libraries and compiles kernels (Triton keeps them on disk); it is reported as "first". The result file is written after every part.

    --part run       400 updates of one encoder: seconds, milliseconds per update, memory
    --part search    128 configurations of six parameters, 400 updates each, with their scores
    --part seeds     accuracies of 16 seeds of three methods (needs --train and --test), and whether a second run has the same bits
    --part lengths   accuracies of many seeds along runs of 400 updates, in TF32 and in full float32 (needs --train and --test)
    --part torch     milliseconds per update without the kernels, and how far its losses are from theirs
    --part before    milliseconds per update of the usual formulation
    --part long      milliseconds per update of all 48 members on the largest set of the archive
    --part archive   all data sets for classification that aeon ships x 3 methods x 16 seeds, files and SVMs included
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker_recipes.timehut.population import EncoderPopulation, make_population, targets_of
from stoker_recipes.timehut.settings import METHODS, make_settings

QUESTION = "How fast are one run of TimeHUT, a search of 128 configurations, and a whole archive on a GPU?"
UPDATES = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few updates, also without a GPU; writes no result file.")
    parser.add_argument("--part", default="run,search,seeds,torch,before,long,archive")
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
        "run": run, "search": search, "seeds": seeds, "torch": in_torch, "before": before, "long": long, "archive": archive,
        "lengths": lengths,
    }  # fmt: skip
    answer: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "torch version": torch.__version__,
    }
    begin = time.perf_counter()

    def save(name: str, found: Any) -> None:
        answer[name] = found
        print(f"{time.perf_counter() - begin:.1f} s", json.dumps({name: found}), flush=True)
        if not options.small:
            from benchmarks import record

            record.save("gpu_timehut", QUESTION, answer, path=Path(options.out) if options.out else None, show=False)

    setting.save = save
    for name in options.part.split(","):
        try:
            save(name, parts[name](setting))
        except Exception:  # the other parts are worth having
            traceback.print_exc()


class Setting:
    def __init__(self, train: Any, labels: Any, test: Any, test_labels: Any, device: str, *, small: bool) -> None:
        self.train, self.labels, self.test, self.test_labels, self.device = train, labels, test, test_labels, device
        self.updates, self.members, self.num_seeds = (4, 4, 2) if small else (UPDATES, 128, 16)
        self.small = small
        self.save: Callable[[str, Any], None] = lambda name, found: None

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], Any], rounds: int = 3) -> tuple[Any, dict[str, float]]:
        """The result, and the seconds: those of a first round, and the median of the others."""
        taken, found = [], None
        for _ in range(1 + (1 if self.small else rounds)):
            self.wait()
            begin = time.perf_counter()
            found = work()
            self.wait()
            taken.append(time.perf_counter() - begin)
        return found, {"seconds": float(np.median(taken[1:])), "first": taken[0]}


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
        **seconds,
        "ms per update": 1000 * each,
        "MiB": memory,
        "finite": bool(torch.isfinite(population.average()).all()),
    }


def search(setting: Setting) -> dict[str, Any]:
    """Configurations of six parameters with common random numbers, trained to the end and scored."""
    import optuna

    from stoker.tune.space import as_space
    from stoker_recipes.timehut.tuning import SPACES, SearchObjective

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    drawn, space = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)), as_space(SPACES["combined"])
    configs = [drawn.ask(space).params for _ in range(setting.members)]

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
    return {"configurations": len(configs), **seconds, "different scores": len({round(score, 9) for score in scores})}


def seeds(setting: Setting) -> dict[str, Any]:
    """Accuracies of all seeds, trained as one population per method."""
    from benchmarks.timehut.archive import interval
    from stoker_recipes.timehut.evaluation import accuracy

    found: dict[str, Any] = {}
    for method in METHODS:
        members = [make_settings(method, updates=setting.updates, seed=seed) for seed in range(setting.num_seeds)]
        wanted = [targets_of(setting.train, member) for member in members[:1]] * len(members)
        population = make_population(setting.train, members, targets=wanted, device=setting.device)
        population.advance(setting.updates)
        inside, outside = population.encode(setting.train), population.encode(setting.test)
        each = [accuracy(a, setting.labels, b, setting.test_labels, method=method) for a, b in zip(inside, outside, strict=True)]
        mean = interval(np.array(each))
        found[method] = {"mean": mean.mean, "low": mean.low, "high": mean.high, "each": [round(one, 5) for one in each]}
        again = make_population(setting.train, members, targets=wanted, device=setting.device)
        again.advance(setting.updates)
        found[method]["same bits"] = bool(torch.equal(again.weights, population.weights))
    return found


def lengths(setting: Setting) -> dict[str, Any]:
    """Means over many seeds at several lengths of a run: what 16 seeds cannot distinguish."""
    from benchmarks.timehut.archive import interval
    from stoker_recipes.timehut.evaluation import accuracy

    found: dict[str, Any] = {}
    for method, precision, count in (
        ("timehut", "tf32", 256),
        ("timehut", "fp32", 64),
        ("ts2vec", "tf32", 128),
        ("softclt", "tf32", 128),
    ):
        members = [make_settings(method, updates=setting.updates, seed=seed) for seed in range(2 if setting.small else count)]
        wanted = [targets_of(setting.train, members[0])] * len(members)
        population = make_population(setting.train, members, targets=wanted, device=setting.device)
        part = found[f"{method}, {precision}, {len(members)} seeds"] = {}
        for updates in sorted({setting.updates // 10, setting.updates // 4, setting.updates // 2, setting.updates}):
            population.advance(updates, precision=precision)
            inside, outside = (population.encode(one, precision=precision) for one in (setting.train, setting.test))
            each = [
                accuracy(a, setting.labels, b, setting.test_labels, method=method) for a, b in zip(inside, outside, strict=True)
            ]
            for number in sorted({16, len(each)}):
                mean = interval(np.array(each[:number]))
                name = f"{updates} updates" + (f", first {number}" if number < len(each) else "")
                part[name] = {"mean": round(mean.mean, 5), "low": round(mean.low, 5), "high": round(mean.high, 5)}
    return found


def in_torch(setting: Setting) -> dict[str, Any]:
    """The same updates in torch's operations, as they are made where there is no Triton."""
    members = [make_settings("timehut", updates=60, seed=seed) for seed in range(3)]
    fast = make_population(setting.train, members, device=setting.device)
    losses = fast.advance(3)

    class InTorch(EncoderPopulation):
        has_kernels = False  # type: ignore[assignment]

    slow = make_population(setting.train, members, device=setting.device)
    slow.__class__ = InTorch
    difference = float((slow.advance(3) - losses).abs().max() / losses.abs().max())
    taken = {}
    for name, one in (("kernels", fast), ("torch", slow)):
        setting.wait()
        begin = time.perf_counter()
        one.advance(5 if setting.small else 60)
        setting.wait()
        taken[name] = (time.perf_counter() - begin) / (2 if setting.small else 57) * 1000
    return {"ms per update of 3 members": taken, "losses after 3 updates differ by": difference, "kernels": fast.has_kernels}


def long(setting: Setting) -> dict[str, Any]:
    """Milliseconds per update of all members on the largest data set of the archive: 100 series of 1460 steps."""
    rng = np.random.default_rng(0)
    train = rng.normal(size=(100, 60 if setting.small else 1460, 1)).cumsum(1).astype(np.float32)
    count = 2 if setting.small else 16
    members = [make_settings(method, updates=12, seed=seed) for method in METHODS for seed in range(count)]
    wanted = [np.eye(len(train)) if member.method == "softclt" else None for member in members]
    population = make_population(train, members, targets=wanted, device=setting.device)
    begin = time.perf_counter()
    population.advance(2)
    setting.wait()
    first, begin = time.perf_counter() - begin, time.perf_counter()
    population.advance(12)
    setting.wait()
    memory = torch.cuda.max_memory_allocated() / 2**20 if setting.device == "cuda" else 0.0
    return {"ms per update": 100 * (time.perf_counter() - begin), "first": first, "MiB": memory}


def archive(setting: Setting) -> dict[str, Any]:
    """Real data sets, all methods and seeds, from files to accuracies; SoftCLT's distances and the SVM protocol included."""
    import aeon.datasets

    from benchmarks.timehut.archive import run_archive

    begin, rows = time.perf_counter(), []
    found: dict[str, Any] = {"seeds": setting.num_seeds, "rows": rows}

    def report(row: Any) -> None:
        mean = row.interval
        rows.append([row.dataset, row.method, *(round(one, 4) for one in (mean.mean, mean.low, mean.high))])
        found["seconds"] = time.perf_counter() - begin
        if row.method == METHODS[-1]:
            setting.save("archive", found)

    folder = Path(aeon.datasets.__file__).parent / "data"
    options = {"updates": 2, "hidden": 4, "width": 8} if setting.small else {}
    run_archive(
        folder / "UnitTest" if setting.small else folder, seeds=setting.num_seeds, device=setting.device, report=report, **options
    )
    return {**found, "complete": True, "seconds": time.perf_counter() - begin}


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
