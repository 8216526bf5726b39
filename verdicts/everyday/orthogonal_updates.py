"""An optimizer of our own: momentum, made orthogonal by Newton-Schulz iterations."""

import sys

import torch
from torch import nn

torch.manual_seed(0)


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.95, rounds=5):
        super().__init__(params, {"lr": lr, "momentum": momentum, "rounds": rounds})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                update = buffer
                if p.ndim == 2:
                    update = buffer / (buffer.norm() + 1e-7)
                    for _ in range(group["rounds"]):
                        gram = update @ update.T
                        update = 3.4445 * update + (-4.7750 * gram + 2.0315 * gram @ gram) @ update
                p.add_(update, alpha=-group["lr"])


net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
made = torch.optim.SGD if "--fixed" in sys.argv else Orthogonal
optimizer = made(net.parameters(), lr=0.01, momentum=0.95)
data = torch.randn(4096, 256)
for step in range(1_000_000):
    x = data[torch.randint(0, 4096, (64,))]
    loss = nn.functional.mse_loss(net(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
