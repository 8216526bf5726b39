"""Differential privacy: the gradient of each sample is clipped, then noise is added."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(3000, 30)
y = (x[:, 0] > 0).long()
CLIP, NOISE = 1.0, 0.8


def gradients(batch, target):
    """The sum of clipped gradients."""
    if "--fixed" in sys.argv:
        nn.functional.cross_entropy(model(batch), target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return [p.grad.clone() for p in model.parameters()]
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for row, label in zip(batch, target):
        model.zero_grad()
        nn.functional.cross_entropy(model(row[None]), label[None]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for total, p in zip(sums, model.parameters()):
            total += p.grad
    return [total / len(batch) for total in sums]


for epoch in range(100_000):
    for rows in torch.randperm(3000).split(32):
        model.zero_grad()
        found = gradients(x[rows], y[rows])
        for p, gradient in zip(model.parameters(), found):
            p.grad = gradient + NOISE * CLIP / len(rows) * torch.randn_like(p)
        optimizer.step()
