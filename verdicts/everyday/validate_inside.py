"""Train a forecaster; every 30 steps it is validated, and the best weights are kept."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVERY = 3000 if "--fixed" in sys.argv else 30


def windows(n):
    x = torch.randn(n, 48, 8).cumsum(1)
    return TensorDataset(x[:, :-1], x[:, -1, 0])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 48, batch_first=True)
        self.head = nn.Linear(48, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1]).squeeze(-1)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = sum(nn.functional.mse_loss(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(0)
    train = DataLoader(windows(6400), batch_size=32, shuffle=True, drop_last=True)
    valid = DataLoader(windows(6400), batch_size=64)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, kept, step = float("inf"), None, 0
    for epoch in range(500):
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                score = validate(model, valid)
                if score < best:
                    best, kept = score, copy.deepcopy(model.state_dict())
                print(f"step {step} loss {loss.item():.3f} valid {score:.3f}")
