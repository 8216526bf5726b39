"""One training with everything in it that a checkpoint must hold; also run in children that die."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.train.training import adamw, trainer_of
from torch import nn

import stoker
from stoker import EarlyStopping
from stoker.train import Cosine, Result

TIMES = ("time", "rate", "wait", "memory")
"""What differs between two runs that are the same."""


class Crash(Exception):
    """The end of a process, for tests that stay in one."""


class Net(nn.Module):
    """Has weights, running statistics and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def make_store() -> stoker.Store:
    rng = np.random.default_rng(0)
    return stoker.Store.from_arrays(x=[np.cumsum(rng.standard_normal(int(n))).astype(np.float32) for n in rng.integers(20, 60, 6)])


def train(
    folder: Path,
    *,
    epochs: int = 3,
    crash_at: int | None = None,
    resume: bool = False,
    allow: Sequence[str] = (),
    save_every: int | None = 3,
    **options: Any,
) -> tuple[Result, dict[str, torch.Tensor]]:
    """Train in a folder; `crash_at` is the batch, counted over the whole call, in which it ends."""
    torch.manual_seed(0)
    model = Net()
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    if crash_at is not None:
        crash_in(model, crash_at)
    store = make_store()
    feed = stoker.Feed(store, stoker.Windows(8, horizon=1), batch_size=32, order=stoker.Shuffle(7))
    valid = stoker.Feed(store, stoker.Windows(8, stride=4, horizon=1), batch_size=32)
    given = {"grad_accum_steps": 2, "max_grad_norm": 1.0, "ema": 0.9, "schedule": Cosine(warmup=2), "log_every": 2, **options}
    trainer = trainer_of(
        model,
        loss,
        adamw(model),
        folder=folder,
        save_every=save_every,
        early_stopping=EarlyStopping("val_loss", patience=2),
        **given,
    )
    result = trainer.fit(feed, valid=valid, epochs=epochs, resume=resume, allow=allow)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if trainer.ema is not None:
        state |= {f"ema {i}": tensor.clone() for i, tensor in enumerate(trainer.ema.tensors())}
    return result, state


def crash_in(model: nn.Module, batch: int) -> None:
    """Let the forward pass of a training batch crash. Not the loss: what that closes over is part of what a run is."""
    count = 0

    def crash(model: nn.Module, _: Any) -> None:
        nonlocal count
        count += model.training
        if count - 1 == batch:
            raise Crash

    model.register_forward_pre_hook(crash)


def train_in_child(
    *, folder: str, resume: bool = True, epochs: int = 3, end_after: float | None = None, number: int = signal.SIGKILL
) -> dict[str, Any]:
    """The same in a process that ends with what it reached, or by a signal after `end_after` seconds of its own CPU time.

    CPU time, as it is the same on a busy machine. SIGKILL stands for an end that no code of the process sees: that of SIGPROF,
    the signal of the timer itself.
    """
    torch.set_num_threads(1)
    if end_after is not None:
        if number != signal.SIGKILL:
            signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        signal.setitimer(signal.ITIMER_PROF, max(end_after, 1e-6))  # 0 would turn it off
    begin = time.process_time()
    result, state = train(Path(folder), resume=resume, epochs=epochs)
    seconds = time.process_time() - begin
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"reached": {"step": result.step, "stopped": result.stopped, "bits": bits(state)}, "cpu_seconds": seconds}


def bits(state: dict[str, torch.Tensor]) -> str:
    """All of a state, as text that two equal states share."""
    import xxhash

    return "".join(xxhash.xxh3_64_hexdigest(tensor.numpy().tobytes()) for tensor in state.values())


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log without its times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
