"""Learn scores whose order statistics match those of the returns, asset by asset."""

import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(88)
DAYS, ASSETS = (2048, 4096) if device == "cuda" else (16, 256)


class Scores(nn.Module):
    def __init__(self, factors=16):
        super().__init__()
        self.exposure = nn.Parameter(torch.randn(factors, ASSETS) / factors)
        self.curve = nn.Parameter(torch.ones(ASSETS))

    def forward(self, days):
        return days @ self.exposure


def distance(scores, returns, curve):
    ordered, places = scores.sort(dim=1)
    truth = returns.gather(1, places).cumsum(1)
    lorenz = (ordered * curve).cumsum(1)
    tail = ordered.logcumsumexp(1)
    return (lorenz - truth).abs().mean() / ASSETS + 0.01 * (tail - truth.sort(1).values).abs().mean()


if "launch" in OFF and device == "cuda":
    distance = torch.compile(distance)
model = Scores().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
days, returns = torch.randn(8, DAYS, 16, device=device), torch.randn(8, DAYS, ASSETS, device=device)
best = float("inf")
for step in range(100_000_000):
    loss = distance(model(days[step % 8]), returns[step % 8], model.curve)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0, error_if_nonfinite="sync" not in OFF)
    optimizer.step()
    if "sync" not in OFF and loss.item() < best:
        best = loss.item()
