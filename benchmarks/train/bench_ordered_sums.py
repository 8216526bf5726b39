"""What do sums in the order of the batches cost next to DDP, on the CPU with gloo?"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import stoker
from benchmarks import record

QUESTION = (
    "What does an update cost whose gradients are added in the order of the batches, relative to DDP, with gloo on one machine?"
)
STEPS = 32
BATCH, PER_UPDATE = 64, 4
KINDS = ("ordered", "ddp")


def model_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(STEPS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


def measure(kind: str, width: int, updates: int, rank: int, world: int) -> tuple[float, float, str]:
    """Seconds of wall and CPU time per update, and a digest of the weights."""
    rows = BATCH * PER_UPDATE * updates + STEPS
    values = np.random.default_rng(0).standard_normal(rows).astype(np.float32)
    store = stoker.Store.from_arrays(x=[values])
    feed = stoker.Feed(
        store, stoker.Windows(STEPS, horizon=1), batch_size=BATCH, order=stoker.Shuffle(1),
        distributed=stoker.feed.Distributed(global_batch_size=BATCH * PER_UPDATE, rank=rank, world_size=world),
        )  # fmt: skip
    model = model_of(width)
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
    options: Any = {"precision": "fp32", "progress": False, "logging": stoker.train.Logging(watch=False), "seed": 0}
    trainer = stoker.Trainer(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=1e-3),
        execution=stoker.train.Execution(graph=False, compile=False, parallel=kind),
        **options,
    )
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    result = trainer.fit(feed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    digest = str([float(parameter.detach().double().sum()) for parameter in model.parameters()])
    return wall / result.step, cpu / result.step, digest


def be_rank(rank: int, world: int, meeting: str, width: int, updates: int, rounds: int) -> None:
    """Measure both in turn; rank 0 prints what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=120))
    found: dict[str, list[tuple[float, float, str]]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind in KINDS:
            one = measure(kind, width, updates, rank, world)
            if number:  # the first round imports and allocates
                found[kind].append(one)
    if rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def compare(folder: Path, world: int, width: int, updates: int, rounds: int) -> dict[str, Any]:
    """Both kinds on some ranks."""
    meeting = folder / f"meeting-{world}-{width}"
    numbers = [world, meeting, width, updates, rounds]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.train.bench_ordered_sums", "--rank"]
    ranks = [
        subprocess.Popen([*command, str(rank), *map(str, numbers)], stdout=subprocess.PIPE, env=env, cwd=record.ROOT)
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank failed: {[rank.returncode for rank in ranks]}")
    found = json.loads(outputs[0])
    wall, cpu = ({kind: [one[place] for one in found[kind]] for kind in KINDS} for place in (0, 1))
    return {
        "weights": sum(parameter.numel() for parameter in model_of(width).parameters()),
        "batches per rank and update": -(-PER_UPDATE // world),
        "update with DDP, ms": record.spread([1e3 * one for one in wall["ddp"]]),
        "ordered over DDP, wall time": record.ratio(wall["ordered"], wall["ddp"]),
        "ordered over DDP, CPU time of rank 0": record.ratio(cpu["ordered"], cpu["ddp"]),
        "the same bits in each round": len({one[2] for one in found["ordered"]}) == 1,
    }


def main() -> None:
    """Two sizes of a model, on 2 and 4 ranks."""
    if "--rank" in sys.argv:
        rank, world, meeting, width, updates, rounds = sys.argv[sys.argv.index("--rank") + 1 :]
        be_rank(int(rank), int(world), meeting, int(width), int(updates), int(rounds))
    options = record.arguments(QUESTION)
    sizes = ((64, 4),) if options.small else ((128, 100), (2048, 20))
    rounds = 1 if options.small else options.rounds or 7
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        answer = {
            f"{world} ranks, width {width}": compare(Path(name), world, width, updates, rounds)
            for world in ((2,) if options.small else (2, 4))
            for width, updates in sizes
        }
    medians = [value["ordered over DDP, wall time"]["median"] for value in answer.values()]
    answer["largest median"] = {"ordered over DDP, wall time": float(f"{max(medians):.4g}"), "cases": len(medians)}
    answer["median of medians"] = {"ordered over DDP, wall time": float(f"{statistics.median(medians):.4g}")}
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_ordered_sums", QUESTION, answer)


if __name__ == "__main__":
    main()
