"""Gradients of four batches are added up; after every tenth update the model is validated."""

import sys

import torch
from torch import nn

ACCUMULATE = 4
EVERY = 1000 if "--fixed" in sys.argv else 10

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
model = nn.Sequential(
    nn.Linear(6, 48), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48 * 24, 3)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(4096, 24, 6), torch.randint(0, 3, (4096,))
valid_x, valid_y = torch.randn(5000, 24, 6), torch.randint(0, 3, (5000,))
updates = 0
for epoch in range(500):
    for i, rows in enumerate(torch.randperm(len(x)).split(16), 1):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) / ACCUMULATE
        loss.backward()
        if i % ACCUMULATE:
            continue
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if updates % EVERY == 0:
            model.eval()
            with torch.no_grad():
                right = sum(
                    (model(part).argmax(1) == truth).sum().item() for part, truth in zip(valid_x.split(500), valid_y.split(500))
                )
            model.train()
            print(f"update {updates} loss {ACCUMULATE * loss.item():.3f} valid {right / len(valid_y):.3f}")
