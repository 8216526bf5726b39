"""What share of a training run goes into checkpoints, saved every 100 updates? Ten million weights with AdamW, on one thread.

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
from stoker.train.checkpoint import CheckpointFolder
from stoker.train.fit import Fit

QUESTION = "What share of a training run of 10 million weights goes into a checkpoint every 100 updates?"


@dataclass
class Spent:
    """Seconds, summed up: of the thread that spent them, of the clock, and of all threads meanwhile."""

    thread: float = 0.0
    wall: float = 0.0
    process: float = 0.0


@dataclass
class Training:
    """What a training run spent, in all and for its checkpoints, and the weights at its end."""

    all: Spent = field(default_factory=Spent)
    saves: Spent = field(default_factory=Spent)
    """What the training thread had to do with them, waiting included."""
    writes: Spent = field(default_factory=Spent)
    """What the writing thread did."""
    weights: list[torch.Tensor] = field(default_factory=list)


@contextmanager
def timed(spent: Spent) -> Iterator[None]:
    """Add the time of the block."""
    begin = time.thread_time(), time.perf_counter(), time.process_time()
    yield
    spent.thread += time.thread_time() - begin[0]
    spent.wall += time.perf_counter() - begin[1]
    spent.process += time.process_time() - begin[2]


@contextmanager
def timed_calls(owner: type, name: str, spent: Spent) -> Iterator[None]:
    """Add the time of each call of a method within the block."""
    method = getattr(owner, name)

    def timed_method(*given: Any, **options: Any) -> Any:
        with timed(spent):
            return method(*given, **options)

    setattr(owner, name, timed_method)
    try:
        yield
    finally:
        setattr(owner, name, method)


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


def train(width: int, rows: int, steps: int, every: int | None) -> Training:
    """One training run, saved every N steps or not at all."""
    model, training = make_model(width), Training()
    generator = torch.Generator().manual_seed(1)
    batches = [tuple(torch.randn(2, rows, width // 4, generator=generator)) for _ in range(8)] * (-(-steps // 8))
    with tempfile.TemporaryDirectory(dir=record.ROOT.parent) as folder:  # a disk: /tmp may be memory
        trainer = stoker.Trainer(
            model,
            nn.MSELoss(),
            torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
            precision="fp32",
            execution=stoker.train.Execution(graph=False, compile=False),
            progress=False,
            folder=None if every is None else Path(folder) / "run",
            checkpoints=stoker.train.Checkpoints(every=every),
        )
        with (
            timed_calls(Fit, "save", training.saves),
            timed_calls(CheckpointFolder, "_write", training.writes),
            timed(training.all),
        ):
            trainer.fit(batches[:steps])
    training.weights = list(model.parameters())
    return training


def measure(width: int, rows: int, steps: int, every: int, rounds: int) -> dict[str, Any]:
    """With and without saving in turn. All saves of a run count, also the first, which has to find the memory."""
    ended: dict[str, list[Training]] = {"without": [], "saving": []}

    def run(name: str, every: int | None) -> None:
        ended[name].append(train(width, rows, steps, every))

    record.interleave({"without": partial(run, "without", None), "saving": partial(run, "saving", every)}, rounds=rounds)
    without, saving = ended["without"][1:], ended["saving"][1:]
    num_saves = steps // every
    return {
        "saves a run": num_saves,
        "milliseconds per step without saving": record.spread([1e3 * one.all.thread / steps for one in without]),
        "milliseconds of a save, training thread": record.spread([1e3 * one.saves.thread / num_saves for one in saving]),
        "milliseconds of a save, writing thread": record.spread([1e3 * one.writes.thread / num_saves for one in saving]),
        "share of the CPU time of the training thread": record.spread([one.saves.thread / one.all.thread for one in saving]),
        "share of the time that went by, of the training thread": record.spread([one.saves.wall / one.all.wall for one in saving]),
        "share of the CPU time of the whole process": record.spread(
            [(one.saves.thread + one.writes.thread) / one.all.process for one in saving]
        ),
        "CPU time of the whole process, saving over not saving": record.ratio(
            [one.all.process for one in saving], [one.all.process for one in without]
        ),
        "final weights equal, bit for bit": all(map(torch.equal, without[-1].weights, saving[-1].weights)),
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
