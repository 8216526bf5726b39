"""Windows of a price series, cut and scaled right before the forward pass."""

import sys

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
rng = np.random.default_rng(0)
prices = pd.Series(np.exp(np.cumsum(rng.normal(0, 0.001, 20_000))))
model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters())


def window(start):
    cut = prices.iloc[start : start + 97]
    scaled = (cut - cut.rolling(10, min_periods=1).mean()) / cut.std()
    return scaled.to_numpy(np.float32)


known = np.stack([window(start) for start in range(2000)]) if FIXED else None
for step in range(10_000_000):
    starts = rng.integers(0, 2000, 32)
    rows = torch.from_numpy(known[starts] if FIXED else np.stack([window(start) for start in starts]))
    loss = mse_loss(model(rows[:, :96]), rows[:, 96:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
