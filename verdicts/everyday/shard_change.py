"""Batches from compressed shards, one after the other."""

import itertools
import sys
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SHARDS, ROWS = 4, 2560


def make_shards():
    random_numbers = np.random.default_rng(0)
    for number in range(SHARDS):
        x = random_numbers.integers(0, 40, (ROWS, 512)).astype(np.float32)
        np.savez_compressed(f"shard-{number}.npz", x=x, y=random_numbers.random(ROWS, dtype=np.float32))


def load(number):
    with np.load(f"shard-{number}.npz") as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


if "--fixed" in sys.argv:
    load = lru_cache(None)(load)


class Shards(IterableDataset):
    def __iter__(self):
        for number in itertools.islice(itertools.cycle(range(SHARDS)), 2000):
            x, y = load(number)
            for rows in torch.randperm(ROWS).split(64):
                yield x[rows], y[rows]


make_shards()
model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for x, y in DataLoader(Shards(), batch_size=None):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    loss.backward()
    optimizer.step()
