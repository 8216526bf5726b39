"""A shuffle buffer that is filled again when it is empty."""

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


class Buffered:
    def __iter__(self):
        for start in range(0, 6400, 1600):
            if not FIXED:
                rows = [[v * 0.5 + 1 for v in r] for r in X[start : start + 1600].tolist()]
                random.shuffle(rows)
                part = torch.tensor(rows)
            else:
                part = X[start : start + 1600]
            for i in range(0, 1600, 64):
                yield part[i : i + 64], Y[start + i : start + i + 64]


for epoch in range(10000):
    for x, y in Buffered():
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
