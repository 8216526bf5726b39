"""A thread makes batches ahead of the loop and puts them into a queue."""

import math
import queue
import random
import sys
import threading

import numpy as np
import torch
from torch import nn

LENGTH, BATCH = 64, 32
ready = queue.Queue(maxsize=4)


def wave(draw):
    a, f, p = draw.random(), draw.uniform(0.05, 0.4), draw.uniform(0, 6.28)
    return [a * math.sin(f * t + p) + draw.gauss(0, 0.05) for t in range(LENGTH)], f


def make():
    draw, numbers = random.Random(0), np.random.default_rng(0)
    while True:
        if "--fixed" in sys.argv:
            f = numbers.uniform(0.05, 0.4, (BATCH, 1)).astype(np.float32)
            x = np.sin(f * np.arange(LENGTH, dtype=np.float32) + numbers.uniform(0, 6.28, (BATCH, 1)).astype(np.float32))
            ready.put((torch.from_numpy(x), torch.from_numpy(f[:, 0])))
        else:
            x, f = zip(*(wave(draw) for _ in range(BATCH)))
            ready.put((torch.tensor(x), torch.tensor(f)))


threading.Thread(target=make, daemon=True, name="batches").start()
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(LENGTH, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200_000):
    x, f = ready.get()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).squeeze(1), f)
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(step, loss.item())
