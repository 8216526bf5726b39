"""A recursive network that computes the value of bracketed expressions, as in ListOps."""

import random

import torch
from torch import nn

LEAVES, TREES, PER_STEP = 20, 4000, 4
OPERATIONS = [min, max, lambda a, b: (a + b) % 10]


def grow(leaves):
    """A digit, or (operation, left, right)."""
    if leaves == 1:
        return random.randrange(10)
    cut = random.randint(1, leaves - 1)
    return random.randrange(3), grow(cut), grow(leaves - cut)


def value(tree):
    if isinstance(tree, int):
        return tree
    op, left, right = tree
    return OPERATIONS[op](value(left), value(right))


class TreeNet(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.digits = nn.Parameter(torch.randn(10, dim))
        self.compose = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(3)])
        self.out = nn.Linear(dim, 10)

    def encode(self, tree):
        if isinstance(tree, int):
            return self.digits[tree]
        op, left, right = tree
        both = torch.cat([self.encode(left), self.encode(right)])
        return torch.tanh(self.compose[op](both))

    def forward(self, trees):
        return self.out(torch.stack([self.encode(tree) for tree in trees]))


random.seed(0)
torch.manual_seed(0)
trees = [grow(LEAVES) for _ in range(TREES)]
examples = [(tree, value(tree)) for tree in trees]
model = TreeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(200):
    random.shuffle(examples)
    right = 0
    for i in range(0, TREES, PER_STEP):
        part = examples[i : i + PER_STEP]
        target = torch.tensor([v for _, v in part])
        logits = model([tree for tree, _ in part])
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == target).sum().item()
    print(f"epoch {epoch}: accuracy {right / TREES:.3f}")
