"""Train a residual MLP and keep statistics of each of its weights."""

import sys
from collections import defaultdict

import torch
from torch import nn

EVERY = 1000 if "--fixed" in sys.argv else 1


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.inner(self.norm(x)))


class Monitor:
    def __init__(self):
        self.rows = defaultdict(list)

    def __call__(self, module):
        for name, parameter in module.named_parameters():
            weight, gradient = parameter.detach(), parameter.grad
            row = [weight.mean().item(), weight.std().item(), weight.abs().max().item()]
            row += [gradient.norm().item(), float((gradient == 0).float().mean())]
            self.rows[name] = [*self.rows[name][-200:], row]


def run(steps):
    net = nn.Sequential(nn.Linear(40, 64), *[Block(64) for _ in range(12)], nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    monitor = Monitor()
    inputs, classes = torch.randn(10_000, 40), torch.randint(0, 3, (10_000,))
    for step in range(steps):
        index = torch.randint(0, 10_000, (48,))
        loss = nn.functional.cross_entropy(net(inputs[index]), classes[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            monitor(net)


if __name__ == "__main__":
    run(500_000)
