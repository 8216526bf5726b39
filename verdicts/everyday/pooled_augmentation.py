"""Images are augmented by a pool of threads, a batch ahead of the network."""

import random
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
images = torch.rand(512, 24, 24).tolist()
labels = torch.randint(0, 10, (512,))
packed = torch.tensor(images)


def augmented(i):
    picture = images[i]
    if random.random() < 0.5:
        picture = [row[::-1] for row in picture]
    gain = random.uniform(0.8, 1.2)
    return [[min(1.0, value * gain) for value in row] for row in picture]


def batch(pool):
    rows = [random.randrange(512) for _ in range(32)]
    if FIXED:
        return (packed[rows] * random.uniform(0.8, 1.2)).clamp(max=1.0), labels[rows]
    return torch.tensor(list(pool.map(augmented, rows))), labels[rows]


net = nn.Sequential(nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
with ThreadPoolExecutor(4) as samples, ThreadPoolExecutor(1) as ahead:
    queue = deque(ahead.submit(batch, samples) for _ in range(2))
    for step in range(1_000_000):
        x, y = queue.popleft().result()
        queue.append(ahead.submit(batch, samples))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
