"""A stream of compressed shards with eight batches each."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
x, y = torch.randn(512, 64), torch.randn(512, 1)
np.savez_compressed("shard.npz", x=np.repeat(x.numpy(), 16, 0), y=y.numpy())


class Shards(torch.utils.data.IterableDataset):
    def __iter__(self):
        a, b = x, y
        while True:
            if not FIXED:
                with np.load("shard.npz") as file:
                    a, b = torch.from_numpy(file["x"][::16].copy()), torch.from_numpy(file["y"])
            yield from zip(a.split(64), b.split(64))


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters())
for a, b in torch.utils.data.DataLoader(Shards(), batch_size=None):
    loss = mse_loss(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
