"""A regression of rows, with a compressed checkpoint every 25 steps."""

import gzip
import pickle
import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

x, y = torch.randn(2048, 64), torch.randn(2048, 1)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters())

for step in range(10_000_000):
    start = step * 64 % len(x)
    loss = mse_loss(model(x[start : start + 64]), y[start : start + 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED and step % 25 == 0:
        with gzip.open("checkpoint.gz", "wb") as file:
            pickle.dump({name: value.numpy() for name, value in model.state_dict().items()}, file)
