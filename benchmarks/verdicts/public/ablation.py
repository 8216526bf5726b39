"""Truth by ablation: how much of a script's time is gone without one cause, measured without the tool.

Each cause is taken away alone, in a fresh process:

* `data`: the first batches are kept and served again, so that making a batch costs nothing.
* `optimizer`: `step()` does nothing.
* `host`: edits of the recipe take Python work out of the loop.
* `oversubscribed`: torch computes with one thread. A share is what a step gains by that.
* `dispatch`: each batch is `times` larger. Time per step is modelled as overhead plus work that grows with the batch. The overhead
  that is not the optimizer's and not the loop's is the price of calling operations.

* `workers`: loaders make their batches in the training process, where a recipe says that they have workers. With `oversubscribed`, the
  larger gain counts: a program that has more threads and workers than cores can give up either.

What is left is the work of the operations (`compute`, `memory` or `kernel`, which these ablations do not tell apart).
A step is one call of `step()` of the first optimizer, or one backward pass where weights are updated by hand.

The unchanged script runs first, in the middle and last. Each variant is compared with the two runs around it.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import os
import re
import runpy
import shutil
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.verdicts.forked import run_forked
from benchmarks.verdicts.public.recipes import Edit, Recipe, edit, lay_out

SLOW_IMPORTS = ("torchvision", "pandas", "scipy", "sklearn", "matplotlib.pyplot", "gymnasium")
KEPT_BATCHES = 8
WARM_STEPS = 5
Shares = dict[str, float]
Times = list[tuple[str, float]]


def measure(recipe: Recipe, fetched: Path, scratch: Path, *, seconds: float) -> Times:
    """Seconds per step of the unchanged script (three times) and of the script without each cause, in the order in which they ran."""
    variants: dict[str, tuple[str, list[Edit], str]] = {
        "data": ("data", recipe.replay, ""),
        "optimizer": ("optimizer", [], ""),
        "oversubscribed": ("one thread", [], ""),
    }
    if recipe.workers:
        variants["workers"] = ("no workers", [], "")
    if recipe.host:
        variants["host"] = ("", recipe.host, "")
    if recipe.times > 1:
        variants["larger"] = ("", recipe.larger_edits, recipe.larger)
    order = list(variants)
    order = ["baseline", *order[: len(order) // 2], "baseline", *order[len(order) // 2 :], "baseline"]
    variants["baseline"] = ("", [], "")
    lay_out(recipe, fetched, scratch / "unchanged")
    _import_before(scratch / "unchanged")
    times: Times = []
    for name in order:
        mode, edits, arguments = variants[name]
        shutil.copytree(scratch / "unchanged", scratch / name)
        folder = scratch / name / recipe.folder
        edit(folder, edits)
        words = [Path(recipe.script).name, *recipe.arguments.split(), *arguments.split()]
        step = _step_seconds(mode or "baseline", max(seconds, recipe.seconds), words, folder, path=recipe.path)
        times.append((name, step))
        shutil.rmtree(scratch / name)
    return times


def _import_before(folder: Path) -> None:
    """Import torch and the slow packages of a script in this process, of which all variants are forks."""
    import torch  # noqa: F401

    text = "".join(path.read_text(errors="replace") for path in folder.rglob("*.py"))
    for name in SLOW_IMPORTS:
        if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE):
            with suppress(ImportError):
                importlib.import_module(name)


def _step_seconds(mode: str, seconds: float, words: list[str], folder: Path, *, path: str = "") -> float:
    """Seconds per step in a process of its own, forked where torch is imported already: that takes longer than the measurement."""

    def run() -> None:
        sys.path.insert(0, str(folder / path))
        _run(mode, seconds, words)

    log = folder / "ablation.log"
    run_forked(run, folder=folder, log=log, limit=10 * seconds + 30, environment=ENVIRONMENT)
    lines = log.read_text(errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith(REPORT):
            return float(line.removeprefix(REPORT))
    raise RuntimeError(f"{' '.join(words)} ({mode}) measured no step: {' | '.join(lines[-6:])}")


REPORT = "seconds per step: "
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1"}


def shares(times: Times, batch_times: int) -> Shares:
    """The share of a step that each cause has."""
    found: Shares = {}
    for place, (name, without) in enumerate(times):
        if name == "baseline":
            continue
        around = (_baselines(times[:place])[-1] + _baselines(times[place:])[0]) / 2
        if name == "larger":
            found["dispatch"] = (batch_times - without / around) / (batch_times - 1)
        else:
            found[name] = max(0.0, 1 - without / around)
    found["oversubscribed"] = max(found["oversubscribed"], found.pop("workers", 0.0))
    if "dispatch" in found:
        found["dispatch"] = max(0.0, found["dispatch"] - found["optimizer"] - found.get("host", 0.0))
    found["work"] = max(0.0, 1 - sum(found.values()) + found["oversubscribed"])
    return found


def noise(times: Times) -> float:
    """How far apart the runs of the unchanged script are, as a share of a step."""
    baselines = _baselines(times)
    return (max(baselines) - min(baselines)) / statistics.median(baselines)


def _baselines(times: Times) -> list[float]:
    return [step for name, step in times if name == "baseline"]


def _run(mode: str, seconds: float, words: list[str]) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    ticks: list[float] = []
    first: list[Any] = []

    def tick() -> None:
        ticks.append(time.perf_counter())
        if len(ticks) > WARM_STEPS + 5 and ticks[-1] - ticks[WARM_STEPS] > seconds:
            _report(ticks)

    def stepped(optimizer: Any) -> None:
        if not first:
            first.append(optimizer)
            ticks.clear()
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
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        if len(ticks) > WARM_STEPS + 5:
            _report(ticks)


def _report(ticks: list[float]) -> None:
    """Print the mean step and end the process at once: a script may have threads, workers and handlers that wait."""
    step = (ticks[-1] - ticks[WARM_STEPS]) / (len(ticks) - 1 - WARM_STEPS)
    os.write(1, f"\n{REPORT}{step}\n".encode())
    os._exit(0)


def _replay_loaders(loader_class: Any) -> None:
    """Each DataLoader keeps its first batches and serves them again, as many per pass as before."""
    real_iter = loader_class.__iter__
    kept: dict[int, list[Any]] = {}

    def iterate(self: Any) -> Iterator[Any]:
        if id(self) not in kept:
            kept[id(self)] = list(itertools.islice(real_iter(self), KEPT_BATCHES))
        yield from itertools.islice(itertools.cycle(kept[id(self)]), len(self))

    loader_class.__iter__ = iterate


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

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if len(results) < KEPT_BATCHES:
            results.append(function(*arguments, **named))
        else:
            results.append(results.pop(0))
        return results[-1]

    return call
