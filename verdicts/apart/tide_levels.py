"""Forecast tide levels at many harbours with a temporal convolution; the skill on the last year is followed during training."""

import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--without", action="append", default=[], metavar="NAME")
parser.add_argument("--check", type=int, default=12, help="steps between two looks at the skill")
opts = parser.parse_args()
if "host" in opts.without:
    opts.check = 2000

rng = np.random.default_rng(8)
hours = np.arange(24 * 365)
levels = np.stack([np.sin(hours / rng.uniform(1.9, 2.1)) + 0.3 * np.sin(hours / rng.uniform(3.7, 4.1)) for _ in range(40)])
levels = torch.from_numpy(levels + 0.05 * rng.standard_normal(levels.shape)).float()
PAST, AHEAD, BATCH = 96, 6, 64
windows = levels.unfold(1, PAST + AHEAD, 1)
if "data" in opts.without:
    prepared = [windows[torch.randint(40, (BATCH,)), torch.randint(8000, (BATCH,))] for _ in range(100)]


class Tides(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        layers, channels = [], 1
        for dilation in (1, 2, 4, 8):
            layers += [nn.Conv1d(channels, width, 3, dilation=dilation, padding=dilation), nn.BatchNorm1d(width), nn.LeakyReLU(0.1)]
            channels = width
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, AHEAD)

    def forward(self, x):
        return self.head(self.body(x[:, None]).mean(-1) + self.body[0](x[:, None])[..., -1])


def skill(model):
    """Return 1 - error / error of the last value, hour by hour as it would be used at the harbour."""
    model.eval()
    error, reference = 0.0, 0.0
    with torch.no_grad():
        for harbour in range(0, 40, 2):
            for start in range(8200, 8640, 24):
                window = windows[harbour, start]
                guess = model(window[None, :PAST])[0]
                for g, truth in zip(guess.tolist(), window[PAST:].tolist()):
                    error += abs(g - truth)
                    reference += abs(float(window[PAST - 1]) - truth)
    model.train()
    return 1 - error / reference


torch.manual_seed(8)
model = Tides()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
smooth = None
step = 0
while True:
    if "data" in opts.without:
        batch = prepared[step % 100]
    else:
        batch = torch.stack([windows[int(h), int(t)] for h, t in zip(torch.randint(40, (BATCH,)), torch.randint(8000, (BATCH,)))])
    loss = nn.functional.smooth_l1_loss(model(batch[:, :PAST]), batch[:, PAST:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = loss.item() if smooth is None else 0.99 * smooth + 0.01 * loss.item()
    step += 1
    if step % opts.check == 0:
        print(f"{step:7d} loss {smooth:.4f} skill {skill(model):.3f}")
