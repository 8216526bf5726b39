import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self, n):
        self.u = torch.randint(0, 300_000, (n,))
        self.i = torch.randint(0, 50_000, (n,))
        self.y = torch.rand(n).round()

    def __len__(self):
        return len(self.u)

    def __getitem__(self, k):
        return self.u[k], self.i[k], self.y[k]


class MF(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.u = nn.Embedding(300_000, d)
        self.i = nn.Embedding(50_000, d)
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(-1) + self.b


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--d", type=int, default=32)
    a = ap.parse_args()
    m = MF(a.d)
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    crit = nn.BCEWithLogitsLoss()
    for ep in range(10):
        for u, i, y in DataLoader(Clicks(100_000), batch_size=128, shuffle=True):
            opt.zero_grad()
            crit(m(u, i), y).backward()
            opt.step()
