"""Predict sets of points: each prediction is matched to a target before the loss."""

import sys

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

FIXED = "--fixed" in sys.argv
POINTS = 40
torch.manual_seed(0)


def matched(predicted, target):
    """For each set, the order of targets with the least total distance."""
    if FIXED:
        return target
    out = []
    for p, t in zip(predicted.detach(), target):
        cost = [[float(np.hypot(*(a - b))) for b in t.numpy()] for a in p.numpy()]
        out.append(t[linear_sum_assignment(np.array(cost))[1]])
    return torch.stack(out)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, POINTS * 2))

    def forward(self, code):
        return self.layers(code).view(-1, POINTS, 2)


decoder = Decoder()
optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3)
codes, sets = torch.randn(800, 32), torch.randn(800, POINTS, 2)
for epoch in range(10_000):
    for rows in torch.randperm(800).split(8):
        predicted = decoder(codes[rows])
        loss = nn.functional.smooth_l1_loss(predicted, matched(predicted, sets[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
