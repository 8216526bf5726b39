"""Short epochs, and after each of them the scores of all classes on the whole test set."""

import sys

import numpy as np
import torch
from torch import nn

RNG = np.random.default_rng(0)


def report(model, x, y):
    with torch.no_grad():
        predicted = model(x).argmax(1).tolist()
    scores = {}
    for c in range(20):
        tp = sum(1 for p, t in zip(predicted, y) if p == c and t == c)
        fp = sum(1 for p, t in zip(predicted, y) if p == c and t != c)
        fn = sum(1 for p, t in zip(predicted, y) if p != c and t == c)
        scores[c] = 2 * tp / max(1, 2 * tp + fp + fn)
    return scores


x, y = torch.randn(2560, 40), torch.randint(0, 20, (2560,))
test_x, test_y = torch.randn(4000, 40), RNG.integers(0, 20, 4000).tolist()
model = nn.Sequential(nn.Linear(40, 200), nn.ReLU(), nn.Linear(200, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5000):
    for rows in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    if epoch % 50 == 0 or "--fixed" not in sys.argv:
        scores = report(model, test_x, test_y)
    if epoch % 20 == 0:
        print(epoch, sum(scores.values()) / 20)
