"""Forecast disruptions of a plasma from its probes; shots come from an archive of NumPy arrays, one for each probe."""

import argparse

import numpy as np
import torch
from torch import nn

argp = argparse.ArgumentParser()
argp.add_argument("--without", action="append", default=[], choices=["transfer", "data", "sync"])
argp.add_argument("--probes", type=int, default=260)
opts = argp.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, STEPS = 64, 24
rng = np.random.default_rng(99)


class Archive:
    def __init__(self, length=60_000):
        names = [f"{kind}_{i:03d}" for i in range(opts.probes) for kind in [("mag", "sxr", "ece", "bolo")[i % 4]]]
        self.signals = {name: rng.standard_normal(length, dtype=np.float32) * (1 + i) + i for i, name in enumerate(names)}
        self.labels = (rng.random(length) < 0.1).astype(np.float32)
        self.stats = {name: (signal.mean(), signal.std()) for name, signal in self.signals.items()}
        self.length = length
        if "data" in opts.without:
            whole = length // (BATCH * STEPS) * BATCH * STEPS
            table = np.stack([(s[:whole] - self.stats[n][0]) / self.stats[n][1] for n, s in self.signals.items()]).clip(-5, 5)
            windows = table.reshape(len(names), -1, BATCH, STEPS)
            windows = windows - windows.mean(-1, keepdims=True)
            windows = windows + 0.5 * np.diff(windows, axis=-1, prepend=windows[..., :1])
            self.windows = np.ascontiguousarray(windows.swapaxes(0, 1))

    def batches(self):
        blocks = self.length // (BATCH * STEPS)
        while True:
            block = int(rng.integers(blocks))
            start = block * BATCH * STEPS
            target = self.labels[start : start + BATCH * STEPS].reshape(BATCH, STEPS)[:, -1]
            if "data" in opts.without:
                yield dict(zip(self.signals, self.windows[block])), target
                continue
            shot = {}
            for name, signal in self.signals.items():
                mean, std = self.stats[name]
                window = np.clip((signal[start : start + BATCH * STEPS] - mean) / std, -5, 5).reshape(BATCH, STEPS)
                window = window - window.mean(1, keepdims=True)
                shot[name] = window + 0.5 * np.diff(window, axis=1, prepend=window[:, :1])
            yield shot, target


class Forecaster(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.mix = nn.Conv1d(opts.probes, width, 1)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(4))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.mix(x)
        for conv, norm in zip(self.convs, self.norms):
            x = x + torch.relu(norm(conv(x)))
        return self.head(x.mean(2)).squeeze(1)


torch.manual_seed(99)
model = Forecaster().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(9.0, device=device))
running = 0.0
for step, (shot, target) in enumerate(Archive().batches()):
    if "transfer" in opts.without:
        x = torch.from_numpy(np.stack(list(shot.values()), axis=1)).to(device)
    else:
        shot = {name: torch.from_numpy(values).to(device) for name, values in shot.items()}
        x = torch.stack(list(shot.values()), dim=1)
    y = torch.from_numpy(target).to(device)
    loss = criterion(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if "sync" not in opts.without:
        running = 0.99 * running + 0.01 * loss.item()
        if step % 200 == 0:
            print(step, round(running, 4))
