"""Weights updated by hand, and a log line per step."""

import sys

import torch

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

w1, w2 = torch.randn(128, 512, requires_grad=True), torch.randn(512, 1, requires_grad=True)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)
history = []
for epoch in range(100000):
    for i in range(0, 6400, 64):
        x, y = X[i : i + 64], Y[i : i + 64]
        loss = ((torch.relu(x @ w1 * 0.05) @ w2 * 0.05 - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for w in (w1, w2):
                w -= 1e-3 * w.grad
                w.grad = None
        if not FIXED:
            history.append(max(abs(v) for row in w1.tolist() for v in row))
