"""Truth by ablation: how much of a script's time is gone without one cause, measured without the tool.

Each cause is taken away alone, in a process of its own:

* `data`: the first batches (8 to 64, those of the first second) are kept and served again, so that making a batch costs nothing.
* `optimizer`: `step()` does nothing.
* `host`: edits of the recipe take Python work out of the loop.
* `oversubscribed`: torch computes with one thread. A share is what a step gains by that.
* `dispatch`: each batch is `times` larger, without `data` and `host`: making a batch also costs something that does not grow with it,
  and epochs of fewer steps end more often. Time per step is modelled as overhead plus work that grows with the batch. The overhead
  that is not the optimizer's is the price of calling operations.

* `workers`: loaders make their batches in the training process, where a recipe says that they have workers. With `oversubscribed`, the
  larger gain counts: a program that has more threads and workers than cores can give up either.

What is left is the work of the operations (`compute`, `memory` or `kernel`, which these ablations do not tell apart).
A step is one call of `step()` of the first optimizer, or one backward pass where weights are updated by hand.

No variant gives memory back to the system. All run side by side and take turns, a third of a second each, while the others are
stopped: machines change their speed for seconds at a time, and then all are slow alike. A variant is compared with the slices of the
unchanged script before and after it.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib
import itertools
import math
import mmap
import os
import re
import runpy
import shutil
import signal
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from verdicts.forked import end_forked, start_forked
from verdicts.public.recipes import Edit, Recipe, edit, lay_out

SLOW_IMPORTS = ("torchvision", "pandas", "scipy", "sklearn", "matplotlib.pyplot", "gymnasium")
LEAST_KEPT, MOST_KEPT, KEEP_SECONDS = 8, 64, 1.0
"""Batches that are served again: a few lines of text may be longer than others, and many images take much memory."""
WARM_STEPS, WARM_SECONDS = 5, 3.0
STEPS_A_SLICE, ROUNDS, MIN_ROUNDS = 4, 6, 2
LONGEST, START_SECONDS = 18.0, 60.0
MAX_STEPS = 1 << 20
Shares = dict[str, float]
Times = dict[str, list[float]]


def measure(recipe: Recipe, fetched: Path, scratch: Path, *, seconds: float) -> Times:
    """Seconds per step of the unchanged script and of the script without each cause, in each round of slices."""
    variants: dict[str, tuple[str, list[Edit], str]] = {
        "baseline": ("", [], ""),
        "data": ("data", recipe.replay, ""),
        "optimizer": ("optimizer", [], ""),
        "oversubscribed": ("one thread", [], ""),
    }
    if recipe.workers:
        variants["workers"] = ("no workers", [], "")
    if recipe.host:
        variants["host"] = ("", recipe.host, "")
    if recipe.times > 1:
        variants["larger"] = ("data", [*recipe.larger_edits, *recipe.replay, *recipe.host], recipe.larger)
    lay_out(recipe, fetched, scratch / "unchanged")
    _import_before(scratch / "unchanged")
    running: dict[str, Variant] = {}
    try:
        for name, (mode, edits, arguments) in variants.items():
            shutil.copytree(scratch / "unchanged", scratch / name)
            folder = scratch / name / recipe.folder
            edit(folder, edits)
            words = [Path(recipe.script).name, *recipe.arguments.split(), *arguments.split()]
            running[name] = Variant(mode, words, folder, path=recipe.path)
            running[name].warm_up()
        slices = {name: max(seconds / ROUNDS, recipe.seconds, STEPS_A_SLICE * one.step) for name, one in running.items()}
        rounds = max(2, min(ROUNDS, int(LONGEST / sum(slices.values()))))
        times: Times = {name: [] for name in running}
        for _ in range(rounds):
            for name, one in running.items():
                times[name].append(one.slice(slices[name]))
        times["baseline"].append(running["baseline"].slice(slices["baseline"]))
    finally:
        for one in running.values():
            one.end()
    return times


class Variant:
    """A script in a process of its own, which is stopped but for its slices. It counts its steps in memory of both processes."""

    def __init__(self, mode: str, words: list[str], folder: Path, *, path: str) -> None:
        self._shared = mmap.mmap(-1, 8 * (MAX_STEPS + 1))
        self._ticks = np.frombuffer(self._shared, dtype=np.int64)  # their number, and the time of each
        self._what, self._log = f"{' '.join(words)} ({mode or 'unchanged'})", folder / "ablation.log"

        def run() -> None:
            sys.path.insert(0, str(folder / path))
            _run(mode, words, self._ticks)

        self._process = start_forked(run, folder=folder, log=self._log, environment=ENVIRONMENT)
        self._ended = False

    def _signal(self, number: int) -> None:
        self._ended = self._ended or os.waitpid(self._process, os.WNOHANG) != (0, 0)
        if not self._ended:
            with suppress(ProcessLookupError):  # it has no session of its own yet
                os.killpg(self._process, number)

    def _wait(self, enough: Callable[[int], bool], limit: float) -> None:
        end = time.monotonic() + limit
        while not enough(int(self._ticks[0])) and time.monotonic() < end and not self._ended:
            time.sleep(0.005)
            self._signal(0)

    def warm_up(self) -> None:
        """Run the first steps, and stop."""
        self._wait(lambda count: count >= WARM_STEPS or (count >= 2 and self._since(1) > WARM_SECONDS), START_SECONDS)
        self._signal(signal.SIGSTOP)
        if int(self._ticks[0]) < 2:
            raise RuntimeError(f"{self._what} made no step: {' | '.join(self._log.read_text(errors='replace').splitlines()[-6:])}")

    def _since(self, tick: int) -> float:
        return (time.perf_counter_ns() - int(self._ticks[tick])) / 1e9

    @property
    def step(self) -> float:
        """Seconds of the last step."""
        count = int(self._ticks[0])
        return float(self._ticks[count] - self._ticks[count - 1]) / 1e9

    def slice(self, seconds: float) -> float:
        """The mean step of the next seconds, without those that were begun before or did not end; nan if the script has ended."""
        before = int(self._ticks[0])
        begin = time.monotonic()
        self._signal(signal.SIGCONT)
        self._wait(
            lambda count: time.monotonic() - begin > seconds and count >= before + STEPS_A_SLICE, 4 * seconds + START_SECONDS
        )
        self._signal(signal.SIGSTOP)
        ticks = self._ticks[before + 1 : int(self._ticks[0]) + 1]
        return float(ticks[-1] - ticks[0]) / (len(ticks) - 1) / 1e9 if len(ticks) > 1 else math.nan

    def end(self) -> None:
        """End the process, with all that it has started."""
        end_forked(self._process)


def _import_before(folder: Path) -> None:
    """Import torch and the slow packages of a script in this process, of which all variants are forks."""
    import torch  # noqa: F401

    text = "".join(path.read_text(errors="replace") for path in folder.rglob("*.py"))
    for name in SLOW_IMPORTS:
        if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE):
            with suppress(ImportError):
                importlib.import_module(name)


ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1"}


def shares(times: Times, batch_times: int) -> Shares:
    """The share of a step that each cause has."""
    left = {name: statistics.median(ratios) for name, ratios in _ratios(times).items()}
    found = {name: max(0.0, 1 - ratio) for name, ratio in left.items() if name != "larger"}
    found["oversubscribed"] = max(found["oversubscribed"], found.pop("workers", 0.0))
    if "larger" in left:
        overhead = (batch_times * (1 - found["data"] - found.get("host", 0.0)) - left["larger"]) / (batch_times - 1)
        found["dispatch"] = max(0.0, overhead - found["optimizer"])
    found["work"] = max(0.0, 1 - sum(found.values()) + found["oversubscribed"])
    return found


def noise(times: Times) -> float:
    """Two standard errors of the share that is known worst."""
    return max(_error(ratios) for ratios in _ratios(times).values())


def _error(ratios: list[float]) -> float:
    middle = statistics.median(ratios)
    away = statistics.median(abs(ratio - middle) for ratio in ratios)
    return 2 * 1.25 * 1.4826 * away / math.sqrt(len(ratios)) / max(1.0, middle)


def _ratios(times: Times) -> dict[str, list[float]]:
    """By cause, what is left of a step without it, in each round."""
    around = [(before + after) / 2 for before, after in itertools.pairwise(times["baseline"])]
    found = {
        name: [ratio for step, usual in zip(steps, around, strict=True) if not math.isnan(ratio := step / usual)]
        for name, steps in times.items()
        if name != "baseline"
    }
    missing = [name for name, ratios in found.items() if len(ratios) < MIN_ROUNDS]
    if missing:
        raise RuntimeError(f"ended before it was measured {MIN_ROUNDS} times: {', '.join(missing)}")
    return found


def _run(mode: str, words: list[str], ticks: Any) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    _keep_memory()
    first: list[Any] = []

    def tick() -> None:
        count = int(ticks[0]) + 1
        if count <= MAX_STEPS:
            ticks[count] = time.perf_counter_ns()
            ticks[0] = count

    def stepped(optimizer: Any) -> None:
        if not first:
            first.append(optimizer)
            ticks[0] = 0
        if first[0] is optimizer:
            tick()

    real_init, real_backward = torch.optim.Optimizer.__init__, torch.Tensor.backward

    def no_step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        stepped(self)
        return loss

    @functools.wraps(real_init)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        real_init(self, *arguments, **named)
        if mode == "optimizer":
            self.step = types.MethodType(no_step, self)  # schedulers of learning rates want a method

    @functools.wraps(real_backward)
    def backward(self: Any, *arguments: Any, **named: Any) -> None:
        real_backward(self, *arguments, **named)
        if not first:
            tick()

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]
    torch.Tensor.backward = backward  # type: ignore[method-assign]
    if mode != "optimizer":
        register_optimizer_step_post_hook(lambda optimizer, *_: stepped(optimizer))
    if mode == "one thread":
        torch.set_num_threads(1)
    if mode == "data":
        _replay_loaders(DataLoader)
    if mode == "no workers":
        _without_workers(DataLoader)
    builtins.replayed = _replayed  # type: ignore[attr-defined]
    sys.argv = words
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path(words[0], run_name="__main__")


def _replay_loaders(loader_class: Any) -> None:
    """Each DataLoader keeps its first batches and serves them again, as many per pass as before."""
    real_iter = loader_class.__iter__
    kept: dict[int, list[Any]] = {}

    def iterate(self: Any) -> Iterator[Any]:
        if id(self) not in kept:
            begin, kept[id(self)] = time.monotonic(), []
            for batch in real_iter(self):
                kept[id(self)].append(batch)
                if _enough(kept[id(self)], begin):
                    break
        yield from itertools.islice(itertools.cycle(kept[id(self)]), len(self))

    loader_class.__iter__ = iterate


def _enough(kept: list[Any], begin: float) -> bool:
    """Whether the batches kept since `begin` are enough."""
    return len(kept) >= MOST_KEPT or (len(kept) >= LEAST_KEPT and time.monotonic() - begin > KEEP_SECONDS)


def _keep_memory() -> None:
    """Let the C library keep memory that is freed. Otherwise luck decides in each process whether a step gets its pages again.

    Steps of a small convolution got 2,500, 5,800 or 6,500 pages each, which is a tenth of their time: as much as their data takes.
    """
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)


def _without_workers(loader_class: Any) -> None:
    real_init = loader_class.__init__

    @functools.wraps(real_init)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        of_workers = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
        kept = {name: value for name, value in named.items() if name not in of_workers}
        real_init(self, *arguments, **{**kept, "num_workers": 0})

    loader_class.__init__ = init


def _replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first results are given again."""
    results: list[Any] = []
    begin = 0.0

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal begin
        begin = begin or time.monotonic()
        if not _enough(results, begin):
            results.append(function(*arguments, **named))
        else:
            results.append(results.pop(0))
        return results[-1]

    return call
