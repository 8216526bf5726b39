"""Accelerate: a prepared `DataLoader` over the samples of a feed, and the feed itself, which needs no preparing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import window_feed

import stoker

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.slow  # the import alone takes seconds


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Not when tests are collected: each process of a run collects all of them, and this import takes seconds."""
    global accelerate
    accelerate = pytest.importorskip("accelerate")


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """Accelerate has one state a process, which would outlive the test."""
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def numbers(batches: Any) -> list[list[int]]:
    return [batch["sample"].tolist() for batch in batches]


def prepared_model(accelerator: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9))
    return model, optimizer


def train(accelerator: Any, model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    with accelerator.accumulate(model):
        accelerator.backward(((model(batch["x"]) - batch["x_target"]) ** 2).mean())
        optimizer.step()
        optimizer.zero_grad()


def test_the_feed_goes_through_prepare_as_it_is(accelerator: Any) -> None:
    feed = window_feed(order=stoker.Shuffle(seed=2))
    assert accelerator.prepare(feed) is feed
    model, optimizer = prepared_model(accelerator)
    before = model.weight.clone()
    for batch in feed:
        train(accelerator, model, optimizer, batch)
    assert feed.epoch == 1
    assert not torch.equal(model.weight, before)


def test_a_checkpoint_of_accelerate_holds_the_state_of_the_feed(accelerator: Any, tmp_path: Path) -> None:
    feed = window_feed(order=stoker.Shuffle(seed=2))
    accelerator.register_for_checkpointing(feed)
    batches = iter(feed)
    next(batches), next(batches)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    rest = numbers(batches)
    accelerator.load_state(str(tmp_path / "checkpoint"))
    assert numbers(feed) == rest


RANK = """
import gc, json, torch, stoker
from accelerate import Accelerator
from torch.utils.data import DataLoader
from tests.feed.ecosystem import window_feed
from tests.feed.test_feed_accelerate import prepared_model, train

accelerator = Accelerator(cpu=True)
feed = window_feed(order=stoker.Shuffle(seed=2), last_batch="pad", batch_size=4)
assert (feed.ranks.rank, feed.ranks.world_size) == (accelerator.process_index, accelerator.num_processes) == (feed.ranks.rank, 2)
model, optimizer = prepared_model(accelerator)
fed, gathered = [], []
for batch in feed:
    train(accelerator, model, optimizer, batch)
    fed.append(batch["sample"].tolist())
    gathered.append(accelerator.gather(batch["sample"]).tolist())
dataset = feed.as_dataset()
loader = accelerator.prepare(DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=dataset.collate))
loaded = [accelerator.gather_for_metrics(batch["sample"]).tolist() for batch in loader]
weight = accelerator.unwrap_model(model).weight.tolist()
print(json.dumps({"fed": fed, "gathered": gathered, "loaded": loaded, "weight": weight}))
model = optimizer = loader = batch = None  # torch 2.13 aborts some exits when DDP outlives its process group
accelerator.free_memory()
gc.collect()
accelerator.wait_for_everyone()
accelerator.end_training()
"""


@pytest.mark.slow
def test_two_ranks_share_one_order() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in ours.items()}, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", RANK]
        ranks.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in outputs)

    one_rank = window_feed(order=stoker.Shuffle(seed=2), last_batch="short", batch_size=8, rank=0, world_size=1)
    together = [mine + yours for mine, yours in zip(first["fed"], second["fed"], strict=True)]
    assert together == first["gathered"] == second["gathered"]
    assert [[number for number in step if number >= 0] for step in together] == numbers(one_rank)
    assert first["weight"] == second["weight"]
    assert first["loaded"] == second["loaded"]
    assert sorted(chain(*first["loaded"])) == list(range(18))
