# %% [markdown]
# Direction of the next bars. Batches are cut from the series in the loop, each window is scaled by itself.

# %%
import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["data", "host", "optimizer"])
without = parser.parse_args().without


class CFG:
    seed = 2026
    length = 64
    horizon = 5
    batch = 128
    channels = 5
    steps = 1_000_000


torch.manual_seed(CFG.seed)
np.random.seed(CFG.seed)

# %%
bars = torch.from_numpy(np.random.randn(40_000, CFG.channels).cumsum(0)).float()
close = bars[:, 3]


def one_by_one(starts):
    xs, ys = [], []
    for start in starts.tolist():
        window = bars[start : start + CFG.length]
        window = (window - window.mean(0)) / (window.std(0) + 1e-6)
        last = start + CFG.length - 1
        xs.append(window)
        ys.append(float(close[last + CFG.horizon] > close[last]))
    return torch.stack(xs), torch.tensor(ys)


every_window = bars.unfold(0, CFG.length, 1).transpose(1, 2)


def at_once(starts):
    windows = every_window[starts]
    windows = (windows - windows.mean(1, keepdim=True)) / (windows.std(1, keepdim=True) + 1e-6)
    last = starts + CFG.length - 1
    return windows, (close[last + CFG.horizon] > close[last]).float()


get_batch = at_once if "data" in without else one_by_one


# %%
class BarNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv1 = nn.Conv1d(CFG.channels, width, 5, stride=2)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        x = torch.relu(self.conv1(x.transpose(1, 2)))
        x = torch.relu(self.conv2(x))
        return self.out(torch.cat([x.amax(2), x[:, :, -1]], 1)).squeeze(1)


model = BarNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused="optimizer" in without)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=CFG.steps)
bce = nn.BCEWithLogitsLoss()

# %%
losses, hits = [], []
for step in range(CFG.steps - 1):
    x, y = get_batch(torch.randint(len(bars) - CFG.length - CFG.horizon, (CFG.batch,)))
    logits = model(x)
    loss = bce(logits, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if "host" not in without:
        losses.append(loss.item())
        hits.append(((logits > 0) == (y > 0.5)).float().mean().item())
        if step % 250 == 0:
            print(f"step {step} loss {np.mean(losses[-250:]):.4f} hits {np.mean(hits[-250:]):.3f}")
