"""Nowcast rain from radar frames in NumPy; plain loop."""

import argparse

import numpy as np
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--without", action="append", default=[])
gone = p.parse_args().without
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
T, SIDE, BATCH = (12, 160, 48) if dev.type == "cuda" else (4, 48, 4)
frames = np.random.default_rng(0).random((600, SIDE, SIDE), dtype=np.float32)
uploaded = torch.from_numpy(frames[: BATCH * T].reshape(BATCH, T, SIDE, SIDE)).to(dev) if "transfer" in gone else None


def batches(rng=np.random.default_rng(3)):
    while True:
        starts = rng.integers(0, len(frames) - T, BATCH)
        clips = frames[: BATCH * T].reshape(BATCH, T, SIDE, SIDE) if "data" in gone else frames[starts[:, None] + np.arange(T)]
        yield torch.from_numpy(clips).to(dev) if uploaded is None else uploaded


net = nn.Sequential(
    nn.Conv2d(T - 1, 24, 5, 4, 2), nn.ReLU(), nn.Conv2d(24, 24, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(24, 1, 4, 4)
).to(dev)
opt = torch.optim.Adam(net.parameters(), fused=True)
for step, clip in enumerate(batches()):
    loss = nn.functional.l1_loss(net(clip[:, :-1]), clip[:, -1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0 and "sync" not in gone:
        print(step, f"{loss.item():.4f}", flush=True)
