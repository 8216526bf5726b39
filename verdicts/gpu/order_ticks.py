"""Predict the next tick of orders. Ticks lie in packed blocks, and each block is cut into 8 batches."""

import struct
import sys
import zlib

import numpy as np
import torch
from torch import nn

OFF = sys.argv[2::2]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rng = np.random.default_rng(77)
torch.manual_seed(77)
ROW = struct.Struct("<iff")


def packed_block(ticks=48_000):
    rows = zip(rng.integers(0, 500, ticks).tolist(), rng.standard_normal(ticks).tolist(), rng.random(ticks).tolist())
    return zlib.compress(b"".join(ROW.pack(*row) for row in rows), 4)


class Ticks:
    """Batches without end."""

    def __init__(self, blocks=6, window=128):
        self.blocks, self.window, self.number, self.queue = [packed_block() for _ in range(blocks)], window, 0, []

    def __iter__(self):
        return self

    def __next__(self):
        if not self.queue:
            raw = zlib.decompress(self.blocks[self.number % len(self.blocks)])
            self.number += 1
            rows = [(price, volume, np.sign(volume)) for _, price, volume in ROW.iter_unpack(raw)]
            ticks = torch.tensor(rows).float().view(-1, self.window, 3)
            self.queue = list(ticks.chunk(8))
        return self.queue.pop()


class Forecast(nn.Module):
    def __init__(self, width=96, depth=10):
        super().__init__()
        self.enter = nn.Conv1d(3, width, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 3, padding=2 ** (k % 5), dilation=2 ** (k % 5)), nn.GroupNorm(4, width), nn.GELU()
            )
            for k in range(2 if "launch" in OFF else depth)
        )
        self.leave = nn.Conv1d(width, 3, 1)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.leave(x)


net = Forecast().to(device)
adam = torch.optim.NAdam(net.parameters(), lr=1e-3)
source = Ticks()
if "data" in OFF:
    kept = [next(source).to(device) for _ in range(16)]
    source = (kept[k % 16] for k in range(10**9))
total = torch.zeros((), device=device)
for k, ticks in enumerate(source):
    x = ticks.to(device, non_blocking=True).transpose(1, 2)
    loss = nn.functional.smooth_l1_loss(net(x)[..., :-1], x[..., 1:])
    adam.zero_grad()
    loss.backward()
    adam.step()
    if "sync" not in OFF:
        total += loss.item()
