"""Vectors of products, of which each step sees a few."""

import sys

import torch
from torch import nn

PRODUCTS, DIM = 400_000, 32
SPARSE = "--fixed" in sys.argv


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.products = nn.Embedding(PRODUCTS, DIM, sparse=SPARSE)
        self.score = nn.Linear(DIM, 1)

    def forward(self, a, b):
        return self.score(self.products(a) * self.products(b)).squeeze(1)


torch.manual_seed(0)
model = Vectors()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(50_000):
    a, b = torch.randint(PRODUCTS, (2, 128))
    loss = nn.functional.binary_cross_entropy_with_logits(model(a, b), torch.rand(128).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(step, loss.item())
