"""Archive: every data set of a folder x methods x seeds, as one table with distributions and confidence intervals.

One accuracy is a draw from a wide distribution: on a small set, methods differ by less than seeds do. So each method has a mean over seeds
with its interval, and methods are compared by the interval of their differences, seed by seed; members with the same seed have the same
initial weights and crops.

On a GPU all methods and seeds of a data set are one population; a thread reads the next set, and classifiers are fitted by other processes
while the GPU trains. On a CPU, where that saves nothing, members are trained one by one.

    python -m benchmarks.timehut.archive UCR/ --seeds 16
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import OptionError
from stoker.extend import Array, check_device
from stoker_recipes.timehut.data import SUFFIXES, fit_scaler, for_training, read_series
from stoker_recipes.timehut.evaluation import accuracy
from stoker_recipes.timehut.population import make_population, targets_of
from stoker_recipes.timehut.settings import METHODS, EncoderSettings, make_settings

GPU_VALUES = 1 << 33
"""Activations and gradients of one population on a GPU, about: more members than that are trained in turns."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    number: int


def interval(values: Array, *, draws: int = 4000, seed: int = 0) -> Interval:
    """Return the mean of values with a 95 % bootstrap interval. Pairs of seeds are compared by the interval of their differences."""
    values = np.asarray(values, np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[chosen].mean(1), [0.025, 0.975])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high), number=len(values))


@dataclass(frozen=True, kw_only=True)
class ArchiveRow:
    """The accuracies of one method on one data set, one per seed."""

    dataset: str
    method: str
    accuracies: tuple[float, ...]
    test_series: int

    @property
    def interval(self) -> Interval:
        """The mean with its 95 % interval."""
        return interval(np.array(self.accuracies))


@dataclass(frozen=True, kw_only=True)
class MethodComparison:
    """The difference of two methods over all data sets and seeds, in accuracy."""

    method: str
    other: str
    difference: Interval
    wins: int
    losses: int


def find_datasets(folder: str | Path) -> list[tuple[str, Path, Path]]:
    """Name, training file and test file of every data set in a folder, small ones first: NAME_TRAIN and NAME_TEST with one suffix.

    Raises:
        OptionError: There is none.
    """
    folder = Path(folder)
    found = {}
    for path in sorted(folder.rglob("*_TRAIN.*")) if folder.is_dir() else []:
        test = path.with_name(path.name.replace("_TRAIN.", "_TEST."))
        name = path.name.partition("_TRAIN.")[0]
        if path.suffix in SUFFIXES and test.is_file() and name not in found:
            found[name] = (name, path, test)
    if not found:
        raise OptionError(
            f"{folder} has no data set; expected files like NAME/NAME_TRAIN.tsv and NAME/NAME_TEST.tsv (or .ts, .arff)."
        )
    return sorted(found.values(), key=lambda one: (one[1].stat().st_size, one[0]))


def run_archive(
    folder: str | Path,
    *,
    methods: Sequence[str] = METHODS,
    seeds: int = 16,
    device: str | None = None,
    report: Callable[[ArchiveRow], None] = lambda row: None,
    **options: Any,
) -> list[ArchiveRow]:
    """Train and score every data set of a folder with every method and seed.

    Args:
        folder: A folder of data sets, such as that of the UCR archive.
        methods: Methods to compare.
        seeds: Seeds 0 to `seeds` - 1 of each method.
        device: Default: a GPU if there is one.
        report: Called with each row when it is done.
        **options: Fields of `EncoderSettings` for all methods, such as `epochs`.

    Returns:
        One row per data set and method.

    Raises:
        OptionError: No data set, an unknown method, or an invalid option.
    """
    if seeds < 1:
        raise OptionError(f"seeds is {seeds}; expected an integer from 1.")
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    members = {method: [make_settings(method, **options, seed=seed) for seed in range(seeds)] for method in methods}
    rows, order, scored = [], [], []
    everyone = [one for settings in members.values() for one in settings]
    with _executor(0 if where.type == "cpu" else os.cpu_count() or 1) as executor, ThreadPoolExecutor(1) as reader:
        waiting, ahead = deque(find_datasets(folder)), deque[Future[_Prepared | None]]()
        while waiting or ahead:
            while waiting and len(ahead) < 2:
                ahead.append(reader.submit(_prepare, *waiting.popleft(), everyone))
            one = ahead.popleft().result()
            if one is None:
                continue  # a set for regression
            order.append(one.name)
            scored.append(_score_members(one, members, device=where, executor=executor))
            for each in [each for each in scored if all(future.done() for future in each[-1])]:
                scored.remove(each)
                rows += _finished(*each, report)
        for each in scored:
            rows += _finished(*each, report)
    return sorted(rows, key=lambda row: order.index(row.dataset))


Scored = tuple[str, dict[str, list[EncoderSettings]], int, list[Future[float]]]
"""A data set, its members, the number of its test series, and the accuracies to come."""


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A data set, scaled, with what is needed for training."""

    name: str
    labels: tuple[Array, Array]
    train: Array
    test: Array
    trained: Array
    targets: dict[float, Array | None]
    """SoftCLT's instance targets by their sharpness."""


def _prepare(name: str, train_path: Path, test_path: Path, settings: Sequence[EncoderSettings]) -> _Prepared | None:
    """Read and scale a data set, and compute distances between its series; None for a set without labels."""
    train, test = read_series(train_path), read_series(test_path)
    if train.labels is None or test.labels is None:
        return None
    scaler = fit_scaler(train.values)
    inside, outside = (part.values if scaler is None else scaler(part.values) for part in (train, test))
    trained = for_training(inside, max_length=settings[0].max_train_length)
    targets = {one.tau_instance: targets_of(trained, one) for one in {one.tau_instance: one for one in settings}.values()}
    return _Prepared(name=name, labels=(train.labels, test.labels), train=inside, test=outside, trained=trained, targets=targets)


def _score_members(
    one: _Prepared, members: dict[str, list[EncoderSettings]], *, device: torch.device, executor: Executor
) -> Scored:
    """Train the members of one data set, and submit their representations for scoring."""
    everyone = [member for settings in members.values() for member in settings]
    futures = [
        executor.submit(accuracy, inside, one.labels[0], outside, one.labels[1], method=member.method)
        for member, (inside, outside) in zip(everyone, _embed(one, everyone, device=device), strict=True)
    ]
    return one.name, members, len(one.labels[1]), futures


def _finished(
    name: str,
    members: dict[str, list[EncoderSettings]],
    test_series: int,
    futures: list[Future[float]],
    report: Callable[[ArchiveRow], None],
) -> list[ArchiveRow]:
    """The rows of one data set, reported."""
    accuracies, rows = iter([one.result() for one in futures]), []
    for method, settings in members.items():
        part = tuple(itertools.islice(accuracies, len(settings)))
        rows.append(ArchiveRow(dataset=name, method=method, accuracies=part, test_series=test_series))
        report(rows[-1])
    return rows


class _Inline(Executor):
    """Does the work when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *values: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*values, **options))
        return done


@contextlib.contextmanager
def _executor(workers: int) -> Iterator[Executor]:
    """Processes that fit classifiers; with 0 workers, this process."""
    if not workers:
        yield _Inline()
        return
    from joblib.externals.loky import ProcessPoolExecutor  # which scikit-learn brings; starts without the caller's main module

    with ProcessPoolExecutor(workers) as pool:
        for _ in range(workers):
            pool.submit(_warm_up)  # imports take a second, and the GPU has work
        yield pool


def _warm_up() -> None:
    import sklearn.svm  # noqa: F401


def _embed(one: _Prepared, settings: Sequence[EncoderSettings], *, device: torch.device) -> list[tuple[Array, Array]]:
    per_member = settings[0].batch_size * 2 * one.trained.shape[1] * settings[0].width * 20
    at_once = 1 if device.type == "cpu" else max(1, GPU_VALUES // per_member)
    at_once = -(-len(settings) // -(-len(settings) // at_once))  # equal turns: one CUDA graph each, none of them small
    found = []
    for begin in range(0, len(settings), at_once):
        some = settings[begin : begin + at_once]
        targets = [one.targets[member.tau_instance] for member in some]
        population = make_population(one.trained, some, targets=targets, device=device)
        population.advance(population.num_updates)
        inside, outside = population.encode(one.train), population.encode(one.test)
        found += list(zip(inside, outside, strict=True))
    return found


def compare_methods(rows: Sequence[ArchiveRow]) -> list[MethodComparison]:
    """All pairs of methods: the mean difference of their accuracies, seed by seed, with its interval."""
    accuracies = {(row.dataset, row.method): np.array(row.accuracies) for row in rows}
    methods = list(dict.fromkeys(row.method for row in rows))
    found = []
    for one, other in itertools.combinations(methods, 2):
        pairs = [(values, accuracies[dataset, other]) for (dataset, method), values in accuracies.items()
                 if method == one and (dataset, other) in accuracies]  # fmt: skip
        difference = np.concatenate([a - b for a, b in pairs])
        found.append(
            MethodComparison(method=one, other=other, difference=interval(difference), wins=int((difference > 0).sum()),
                       losses=int((difference < 0).sum()))
        )  # fmt: skip
    return found


def main() -> None:
    """Print a row per data set and method, and the differences of methods."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=None)
    arguments = parser.parse_args()
    options = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    rows = run_archive(
        arguments.folder, seeds=arguments.seeds, report=lambda row: print(row.dataset, row.method, row.interval), **options
    )
    for pair in compare_methods(rows):
        print(pair)


if __name__ == "__main__":
    main()
