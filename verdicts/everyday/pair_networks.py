"""Two networks that train against each other."""

import math
import random
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 20000

    def __getitem__(self, i):
        rng = random.Random(i)
        if FIXED:
            return torch.full((32,), float(i % 7))
        return torch.tensor([math.sin(rng.random() * k) for k in range(32)])


G = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32))
D = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
loader = torch.utils.data.DataLoader(Rows(), batch_size=128, shuffle=True)
one, zero = torch.ones(128, 1), torch.zeros(128, 1)
for epoch in range(10000):
    for real in loader:
        n = len(real)
        fake = G(torch.randn(n, 16))
        od.zero_grad()
        (bce(D(real), one[:n]) + bce(D(fake.detach()), zero[:n])).backward()
        od.step()
        og.zero_grad()
        bce(D(fake), one[:n]).backward()
        og.step()
