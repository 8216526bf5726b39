"""Word vectors with negatives that are drawn by their frequency."""

import sys

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
VOCABULARY = 120_000
rng = np.random.default_rng(0)
counts = 1.0 / np.arange(1, VOCABULARY + 1)
weights = counts**0.75 / (counts**0.75).sum()
cumulated = np.cumsum(weights)


def negatives(size):
    if FIXED:
        return np.searchsorted(cumulated, rng.random(size)).clip(max=VOCABULARY - 1)
    return np.random.choice(VOCABULARY, size=size, p=weights)


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Embedding(VOCABULARY, 24, sparse=True)
        self.outside = nn.Embedding(VOCABULARY, 24, sparse=True)

    def forward(self, word, context, negative):
        v = self.inside(word)
        positive = (v * self.outside(context)).sum(dim=1)
        others = torch.bmm(self.outside(negative), v[:, :, None]).squeeze(2)
        return -(nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-others).sum(dim=1)).mean()


def pairs(batch):
    while True:
        word = rng.integers(0, VOCABULARY, batch)
        yield word, (word + rng.integers(1, 6, batch)) % VOCABULARY, negatives((batch, 5))


model = Vectors()
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-3)
for arrays in pairs(64):
    loss = model(*(torch.from_numpy(array) for array in arrays))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
