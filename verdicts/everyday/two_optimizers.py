"""A recommender with one optimizer for its tables and one for its layers."""

import sys

import torch
from torch import nn

SPARSE = "--fixed" in sys.argv


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(150_000, 32, sparse=SPARSE)
        self.items = nn.Embedding(100_000, 32, sparse=SPARSE)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users, items):
        return self.layers(torch.cat([self.users(users), self.items(items)], 1)).squeeze(1)


model = Recommender()
tables = [model.users.weight, model.items.weight]
for_tables = torch.optim.SparseAdam(tables, lr=1e-3) if SPARSE else torch.optim.Adam(tables, lr=1e-3)
for_layers = torch.optim.AdamW(model.layers.parameters(), lr=1e-3)
for step in range(100_000):
    users, items = torch.randint(150_000, (256,)), torch.randint(100_000, (256,))
    for_tables.zero_grad()
    for_layers.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), torch.rand(256).round())
    loss.backward()
    for_tables.step()
    for_layers.step()
    if step % 100 == 0:
        print(step, loss.item())
