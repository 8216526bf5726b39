"""A field of points, mapped by smooth functions, with a few weights only."""

import sys

import torch
from torch import nn

SIDE = 48 if "--fixed" in sys.argv else 900
torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self, terms=6):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(terms))
        self.shift = nn.Parameter(torch.rand(terms))

    def forward(self, grid):
        out = torch.zeros_like(grid)
        for scale, shift in zip(self.scale, self.shift):
            out = out + (grid * scale + shift).clamp(-1, 1) * grid
        return out


grid = torch.linspace(-1, 1, SIDE * SIDE).view(SIDE, SIDE)
aim = grid.abs()
field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
for step in range(200_000):
    optimizer.zero_grad()
    difference = field(grid) - aim
    loss = (difference * difference).mean()
    loss.backward()
    optimizer.step()
