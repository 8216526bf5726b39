"""Two towers with Accelerate; every batch is scored by sorting in NumPy, as in the evaluation script."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--without", action="append", default=[], choices=["host", "sync", "data"])
off = set(cli.parse_args().without)
acc = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
torch.manual_seed(31)


def tower(n):
    return nn.Sequential(nn.Linear(n, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 128))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = tower(200), tower(300)

    def forward(self, users, items):
        return nn.functional.normalize(self.user(users), dim=1) @ nn.functional.normalize(self.item(items), dim=1).T


def mean_reciprocal_rank(scores):
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.array([int(np.where(row == i)[0][0]) + 1 for i, row in enumerate(order)])
    gains = [sum(1 / np.log2(k + 2) for k in range(10) if order[i, k] == i) for i in range(len(order))]
    return float((1 / ranks).mean()), float(np.mean(gains))


data = torch.utils.data.TensorDataset(torch.randn(51_200, 200), torch.randn(51_200, 300))
loader = torch.utils.data.DataLoader(data, batch_size=512, shuffle="data" not in off, drop_last=True)
net = Towers()
net, opt, loader = acc.prepare(net, torch.optim.AdamW(net.parameters(), 1e-3), loader)
best = 0.0
for epoch in range(100_000):
    for users, items in loader:
        scores = net(users, items)
        loss = nn.functional.cross_entropy(scores.float() * 20, torch.arange(len(scores), device=acc.device))
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
        if "host" not in off:
            best = max(best, mean_reciprocal_rank(scores.detach().float().cpu().numpy())[0])
        elif "sync" not in off:
            best = max(best, loss.item())
