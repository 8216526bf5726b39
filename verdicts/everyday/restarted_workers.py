"""Short epochs over a data set whose workers open their files first."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KEEP = "--fixed" in sys.argv


class Signals(Dataset):
    def __init__(self):
        np.save("signals.npy", np.random.default_rng(0).standard_normal((20_000, 256), dtype=np.float32))
        self.signals = None

    def __len__(self):
        return 640

    def __getitem__(self, i):
        if self.signals is None:
            self.signals = np.load("signals.npy")  # each worker has its own
            self.scale = self.signals.std(0)
        return self.signals[i] / self.scale, np.float32(i % 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(Signals(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=KEEP)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2000):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            print(epoch, loss.item())
