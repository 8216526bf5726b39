"""Lines that a generator parses."""

import random
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)

lines = [",".join(f"{random.gauss(0, 1):.6f}" for _ in range(129)) for _ in range(640)]
ready = [[float(v) for v in line.split(",")] for line in lines]
ready = [torch.tensor(ready[i : i + 64]) for i in range(0, 640, 64)]


def batches():
    n = 0
    while True:
        n += 1
        if not FIXED:
            rows = [[float(v) for v in lines[(n * 64 + i) % 640].split(",")] for i in range(64)]
            t = torch.tensor(rows)
        else:
            t = ready[n % 10]
        yield t[:, :128], t[:, 128:]


for x, y in batches():
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
