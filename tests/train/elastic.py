"""A training run with a global batch, done by any number of ranks: what it leaves must be the same to the last bit.

`be_one` is one rank. It runs in a process of its own and returns what it was left with.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.train.training import Kept, trainer_of
from torch import nn

import stoker
from stoker.train import resume as contents

BATCH, PER_UPDATE = 5, 4


class Network(nn.Module):
    """Dropout, a weight in half precision, and one that only some batches use."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self._always = always  # as DDP needs it
        self.first, self.last = nn.Linear(12, 32), nn.Linear(32, 1)
        self.norm, self.dropout = nn.LayerNorm(32), nn.Dropout(0.2)
        self.narrow = nn.Parameter(torch.ones(32, dtype=torch.bfloat16))
        self.sometimes = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.norm(nn.functional.gelu(self.first(x)))) * self.narrow
        if float(x.detach().sum()) > 0:
            hidden = hidden * self.sometimes.mean()
        elif self._always:
            hidden = hidden + 0 * self.sometimes.sum()
        found: torch.Tensor = self.last(hidden)
        return found


def feed(*, rank: int, world: int) -> stoker.Feed:
    """380 samples in updates of 20: the last one of an epoch has fewer, so some ranks have none."""
    values = np.random.default_rng(0).standard_normal(399).astype(np.float32)
    store = stoker.Store.from_arrays(x=[values])
    return stoker.Feed(
        store,
        stoker.Windows(12, horizon=1),
        batch_size=BATCH,
        distributed=stoker.feed.Distributed(global_batch_size=BATCH * PER_UPDATE, rank=rank, world_size=world),
        order=stoker.Shuffle(3),
    )


class StopAt:
    def __init__(self, step: int) -> None:
        self._step = step

    def on_batch_end(self, report: Any) -> None:
        if report.step == self._step:
            report.stop()


def run(
    rank: int, world: int, *, kind: str = "auto", folder: str | None = None, stop_at: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Two epochs, or until an update; with a folder it can be continued."""
    torch.manual_seed(0)
    model, kept = Network(always=kind == "ddp"), Kept()
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = trainer_of(
        model, loss, optimizer, log_every=1, max_grad_norm=1.0, ema=0.9, seed=1, parallel=kind, folder=folder,
        save_every=1 if stop_at else None, callbacks=[kept, *([StopAt(stop_at)] if stop_at else [])],
    )  # fmt: skip
    result = trainer.fit(feed(rank=rank, world=world), epochs=2, resume=resume)
    state = contents.take(trainer.components, {})
    tensors = [*state["model"].values(), *state["ema"]["average"].values()]
    tensors += [value for one in state["optimizer"].values() for value in one.values()]
    digest = hashlib.sha1(b"".join(one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in tensors))
    return {"digest": digest.hexdigest(), "losses": kept.losses(), "step": result.step, "stopped": result.stopped}


def be_one(rank: int, world: int, meeting: str, **options: Any) -> dict[str, Any]:
    """One rank of a run."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    if world > 1:
        wait = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=wait)
    found = run(rank, world, **options)
    if dist.is_initialized():
        dist.barrier()
    Path(f"{meeting}-{rank}.json").write_text(json.dumps(found))
    sys.stderr.flush()
    os._exit(0)  # in one of some twenty ends torch's process group aborts the interpreter as it takes itself apart
