"""Shards of different sizes read by workers."""

import sys
import time

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


class Shards(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        mine = [0, 1, 2, 3, 4, 5][info.id :: info.num_workers] if info else range(6)
        for s in mine:
            for i in range(120 if s == 0 else 30):
                if not FIXED:
                    time.sleep(0.02)
                yield X[i * 10 : i * 10 + 64], Y[i * 10 : i * 10 + 64]


loader = torch.utils.data.DataLoader(Shards(), batch_size=None, num_workers=1, persistent_workers=True)
torch.set_num_threads(1)
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
