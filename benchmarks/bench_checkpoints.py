"""What share of a training goes into checkpoints, saved every 100 updates? Ten million weights with AdamW, on one thread.

A save costs the training thread a copy of the state, and another thread the writing of it. Both are counted where they happen,
as CPU time (and, for the training thread, as time that went by); the same training without saving runs in turn with it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stoker
from benchmarks import record
from stoker.train.fit import Fit

QUESTION = "What share of a training of 10 million weights goes into a checkpoint every 100 updates?"


@dataclass
class Spent:
    """Seconds of each of some runs, or of the saves in them."""

    thread: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)


@contextmanager
def timed(spent: Spent) -> Iterator[None]:
    """Add the time of the block."""
    begin = time.thread_time(), time.perf_counter(), time.process_time()
    yield
    spent.thread.append(time.thread_time() - begin[0])
    spent.wall.append(time.perf_counter() - begin[1])
    spent.process.append(time.process_time() - begin[2])


@contextmanager
def timed_saves(spent: Spent) -> Iterator[None]:
    """Add the time of each save within the block, as the training thread sees it."""
    save = Fit.save

    def timed_save(fit: Fit, **options: Any) -> None:
        with timed(spent):
            save(fit, **options)

    Fit.save = timed_save  # type: ignore[method-assign]
    try:
        yield
    finally:
        Fit.save = save  # type: ignore[method-assign]


def make_model(width: int) -> nn.Module:
    """Four layers; a width of 2048 has 10.5 million weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width // 4, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width // 4),
    )


def train(width: int, rows: int, steps: int, every: int, spent: Spent, saves: Spent | None) -> list[torch.Tensor]:
    """One training, saved or not."""
    model = make_model(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(1)
    batches = [tuple(torch.randn(2, rows, width // 4, generator=generator)) for _ in range(8)] * (-(-steps // 8))
    with tempfile.TemporaryDirectory(dir=record.ROOT.parent) as folder:
        trainer = stoker.Trainer(
            model,
            nn.MSELoss(),
            optimizer,
            precision="fp32",
            graph=False,
            compile=False,
            progress=False,
            folder=None if saves is None else Path(folder) / "run",
            save_every=None if saves is None else every,
        )
        with timed_saves(Spent() if saves is None else saves), timed(spent):
            trainer.fit(batches[:steps])
    return list(model.parameters())


def measure(width: int, rows: int, steps: int, every: int, rounds: int) -> dict[str, Any]:
    """With and without saving in turn; what saves cost is counted in the runs that save.

    All saves of a run count, also the first, which has to find the memory. Only one thread trains, so the CPU time of the
    process beyond that of the training thread is that of the writing.
    """
    with_saves, without, saves = Spent(), Spent(), Spent()
    ends: dict[str, list[torch.Tensor]] = {}

    def run(name: str, spent: Spent, saves: Spent | None) -> None:
        ends[name] = train(width, rows, steps, every, spent, saves)

    sides = {"without": partial(run, "without", without, None), "saving": partial(run, "saving", with_saves, saves)}
    record.interleave(sides, rounds=rounds)
    saves_a_run = steps // every
    each = [sum(saves.thread[k : k + saves_a_run]) for k in range(0, len(saves.thread), saves_a_run)][1:]
    each_wall = [sum(saves.wall[k : k + saves_a_run]) for k in range(0, len(saves.wall), saves_a_run)][1:]
    runs, runs_wall, process = with_saves.thread[1:], with_saves.wall[1:], with_saves.process[1:]
    writing = [whole - own for whole, own in zip(process, runs, strict=True)]
    return {
        "saves a run": saves_a_run,
        "milliseconds a step without saving": record.spread([1e3 * one / steps for one in without.thread[1:]]),
        "milliseconds of a save, training thread": record.spread([1e3 * one / saves_a_run for one in each]),
        "milliseconds of a save, writing thread": record.spread([1e3 * one / saves_a_run for one in writing]),
        "share of the training thread's CPU time": record.ratio(each, runs),
        "share of the time that went by, training thread": record.ratio(each_wall, runs_wall),
        "share of the whole process's CPU time": record.ratio([a + b for a, b in zip(each, writing, strict=True)], process),
        "CPU time of the process, saving over not saving": record.ratio(process, without.process[1:]),
        "final weights equal, bit for bit": all(map(torch.equal, ends["without"], ends["saving"])),
    }


def main() -> None:
    """A cheap step, of which saves are a large part, and a dearer one."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    width, steps, every = (256, 20, 10) if options.small else (2048, 200, 100)
    answer: dict[str, Any] = {
        "weights": sum(weight.numel() for weight in make_model(width).parameters()),
        "saved every": every,
        "torch": torch.__version__,
    }
    for rows, rounds in ((64, 1 if options.small else 3), (128, 1)):
        answer[f"batch {rows}"] = measure(width, rows, steps, every, options.rounds or rounds)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_checkpoints", QUESTION, answer)


if __name__ == "__main__":
    main()
