"""Denoises volumes: the array of all volumes stays in host memory, batches of it go to the card."""

import time

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

VOLUMES, SIDE, BATCH = 72, 128, 12


def load():
    rng = np.random.default_rng(0)
    base = rng.random((8, SIDE, SIDE, SIDE), dtype=np.float32)
    out = np.empty((VOLUMES, 1, SIDE, SIDE, SIDE), np.float32)
    for i in range(VOLUMES):
        out[i, 0] = np.roll(base[i % 8], i, axis=0)
    return torch.from_numpy(out)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.AvgPool3d(4)
        self.net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1))

    def forward(self, x):
        coarse = self.down(x)
        noisy = coarse + 0.1 * torch.randn_like(coarse)
        return noisy + self.net(noisy), coarse


volumes = load()
model = Denoiser().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2000):
    start = time.time()
    for i in range(0, VOLUMES, BATCH):
        x = volumes[i : i + BATCH].to(device)
        restored, clean = model(x)
        loss = nn.functional.mse_loss(restored, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: mse {loss.item():.5f}, {time.time() - start:.2f} s")
