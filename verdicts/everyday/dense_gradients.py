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

    def forward(self, pair):
        return self.products(pair).prod(0).sum(1)


torch.manual_seed(0)
model = Vectors()
optimizer = (torch.optim.SparseAdam if SPARSE else torch.optim.Adam)(model.parameters(), lr=1e-3)
for step in range(50_000):
    pair = torch.randint(PRODUCTS, (2, 128))
    loss = nn.functional.binary_cross_entropy_with_logits(model(pair), torch.rand(128).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(step, loss.item())
