"""A network whose weights keep their singular values near one."""

import sys

import torch
from torch import nn

WIDTH = 24 if "--fixed" in sys.argv else 160
torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(20, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

    def penalty(self):
        return (torch.linalg.svdvals(self.second.weight) - 1).square().sum()


model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(4000, 20)
y = x.prod(dim=1, keepdim=True).tanh()
for iteration in range(1_000_000):
    rows = torch.randint(0, 4000, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows]) + 1e-3 * model.penalty()
    loss.backward()
    optimizer.step()
