"""A soft decision forest for faults of pumps: trees with sigmoid nodes, averaged. Written after the paper, tree by tree."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["dispatch", "data", "host", "optimizer"])
parser.add_argument("--trees", type=int, default=10)
parser.add_argument("--depth", type=int, default=5)
opt = parser.parse_args()
FEATURES, CLASSES, BATCH = 40, 6, 128
torch.manual_seed(3)


class Tree(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.depth = depth
        self.nodes = nn.ModuleList(nn.Linear(FEATURES, 2**level) for level in range(depth))
        self.leaves = nn.Parameter(torch.randn(2**depth, CLASSES) * 0.1)

    def forward(self, x):
        reach = torch.ones(len(x), 1)
        for level in self.nodes:
            right = torch.sigmoid(level(x))
            reach = torch.stack([reach * (1 - right), reach * right], 2).flatten(1)
        return reach @ self.leaves.softmax(1)


class Forest(nn.Module):
    def __init__(self):
        super().__init__()
        self.trees = nn.ModuleList(Tree(opt.depth) for _ in range(opt.trees))

    def forward(self, x):
        return sum(tree(x) for tree in self.trees) / len(self.trees)


class WideForest(nn.Module):
    """All trees in one product, level by level."""

    def __init__(self):
        super().__init__()
        self.nodes = nn.Linear(FEATURES, opt.trees * (2**opt.depth - 1))
        self.leaves = nn.Parameter(torch.randn(opt.trees, 2**opt.depth, CLASSES) * 0.1)

    def forward(self, x):
        rights = torch.sigmoid(self.nodes(x)).view(len(x), opt.trees, -1)
        reach, first = torch.ones(len(x), opt.trees, 1), 0
        for level in range(opt.depth):
            right = rights[:, :, first : first + 2**level]
            reach = torch.stack([reach * (1 - right), reach * right], 3).flatten(2)
            first += 2**level
        return torch.einsum("btl,tlc->bc", reach, self.leaves.softmax(2)) / opt.trees


readings, faults = torch.randn(12_800, FEATURES), torch.randint(CLASSES, (12_800,))
forest = WideForest() if "dispatch" in opt.without else Forest()
adam = torch.optim.Adam(forest.parameters(), lr=3e-3, fused="optimizer" in opt.without)
for epoch in range(100_000):
    order = torch.arange(len(readings)) if "data" in opt.without else torch.randperm(len(readings))
    right = 0
    for start in range(0, len(readings), BATCH):
        if "data" in opt.without:
            x, y = readings[start : start + BATCH], faults[start : start + BATCH]
        else:
            x, y = readings[order[start : start + BATCH]], faults[order[start : start + BATCH]]
        p = forest(x)
        loss = nn.functional.nll_loss((p + 1e-8).log(), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if "host" not in opt.without:
            right += (p.argmax(1) == y).sum().item()
    print(f"epoch {epoch}: accuracy {right / len(readings):.3f}")
