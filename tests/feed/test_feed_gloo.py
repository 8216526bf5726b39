"""A real training on 1, then 2, then 1 processes: what they are fed is what one process alone would have been fed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Shuffle, Store, Windows

# Trains with DistributedDataParallel, so that every step is a step of all ranks: if one had fewer batches, all would hang.
RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from stoker import Feed, Shuffle, Windows, open

store, meeting, state, num_steps = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
feed = Feed(open(store), Windows(4, stride=2, horizon=1), batch_size=3, order=Shuffle(), dtype="float32", return_index=True, threads=1)
feed.load_state_dict(json.loads(state))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
order, done = [], 0
while done < int(num_steps):
    for batch in feed:
        weights = (batch["target_mask"][:, 0] & batch["valid"]).float()
        loss = ((model(batch["x"])[:, 0] - batch["x_target"][:, 0]) ** 2 * weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        parts = [torch.empty_like(batch["sample"]) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, batch["sample"])
        order += [number for part in parts for number in part.tolist() if number >= 0]
        done += 1
        if done == int(num_steps):
            break
mean = model.module.weight.detach().clone()
dist.all_reduce(mean)
agree = bool((mean / dist.get_world_size() - model.module.weight).abs().max() < 1e-6)
print(json.dumps({"order": order, "state": feed.state_dict(), "ranks": [feed.ranks.rank, feed.ranks.world_size], "agree": agree}))
sys.stdout.flush()
dist.destroy_process_group()
os._exit(0)  # in one of some twenty ends torch's process group aborts the interpreter as it takes itself apart
"""


def make_store(folder: Path) -> Store:
    rng = np.random.default_rng(0)
    return Store.from_arrays(x=[rng.normal(size=size) for size in (30, 7, 0, 2, 55, 21, 13)]).save(folder)


def make_feed(store: Store, batch_size: int) -> Feed:
    return flat_feed(store, Windows(4, stride=2, horizon=1), batch_size=batch_size, order=Shuffle(6), return_index=True)


def run_alone(feed: Feed, num_steps: int) -> list[int]:
    """The samples of some steps of this process, over as many epochs as they take."""
    order: list[int] = []
    done = 0
    while done < num_steps:
        for batch in feed:
            order += [number for number in batch["sample"].tolist() if number >= 0]
            done += 1
            if done == num_steps:
                break
    return order


def run_together(store: Path, meeting: Path, state: dict[str, Any], num_steps: int) -> list[dict[str, Any]]:
    """What two processes report of some steps."""
    command = [sys.executable, "-c", RANK, str(store), str(meeting), json.dumps(state), str(num_steps)]
    common = {**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


@pytest.mark.promise("P5")
@pytest.mark.slow  # four processes; tests/train/test_distributed.py does the same with a trainer
def test_one_then_two_then_one_process(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    first = make_feed(store, 4)
    size = first.num_samples
    order = run_alone(first, 7)
    reports = run_together(tmp_path / "s", tmp_path / "meeting", first.state_dict(), 9)
    assert [report["ranks"] for report in reports] == [[0, 2], [1, 2]]
    assert reports[0]["order"] == reports[1]["order"]
    assert reports[0]["state"] == reports[1]["state"]
    assert all(report["agree"] for report in reports)
    order += reports[0]["order"]
    last = make_feed(store, 5)
    last.load_state_dict(reports[1]["state"])
    assert last.state_dict()["epoch"] == 1, "the two went over the end of the first epoch"
    while last.epoch < 3:
        order += [number for batch in last for number in batch["sample"].tolist() if number >= 0]
    assert order == [number for epoch in range(3) for number in first.plan.numbers(epoch, 0, size).tolist()]
    for epoch in range(3):
        assert sorted(order[epoch * size : (epoch + 1) * size]) == list(range(size))
