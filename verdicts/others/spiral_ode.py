"""A neural ordinary differential equation for a spiral, integrated with Runge-Kutta steps."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, y):
        return self.net(y**3)


def rk4(f, y, h):
    k1 = f(y)
    k2 = f(y + h / 2 * k1)
    k3 = f(y + h / 2 * k2)
    k4 = f(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def integrate(f, y0, n, h):
    ys = [y0]
    for _ in range(n - 1):
        ys.append(rk4(f, ys[-1], h))
    return torch.stack(ys)


A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=device)
with torch.no_grad():
    truth = integrate(lambda y: y**3 @ A, torch.tensor([[2.0, 0.0]], device=device), 1000, 0.025)


def sample(n=24, length=12):
    s = torch.randint(0, 1000 - length, (n,), device=device)
    return truth[s, 0], torch.stack([truth[s + i, 0] for i in range(length)])


field = Field().to(device)
opt = torch.optim.RMSprop(field.parameters(), lr=1e-3)
for it in range(1, 20_001):
    y0, target = sample()
    loss = (integrate(field, y0, 12, 0.025) - target).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        print(f"iter {it:05d} | loss {loss.item():.6f}")
