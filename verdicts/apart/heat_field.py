"""Inverse problem of a heated rod: a network for the temperature, with the diffusivity learned from residuals and a few sensors."""

import argparse
import math

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--without", action="append", default=[])
p.add_argument("--points", type=int, default=4096)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1234)


class Field(nn.Module):
    def __init__(self, width=96, depth=6):
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.gates = nn.ModuleList(nn.Linear(2, width) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, 1)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x, t):
        z = torch.cat([x, t], 1)
        u, v = (torch.tanh(gate(z)) for gate in self.gates)
        h = torch.tanh(self.enter(z))
        for layer in self.layers:
            h = torch.tanh(layer(h))
            h = h * u + (1 - h) * v
        return self.leave(h)


def d(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


sensor_x, sensor_t = torch.rand(256, 1, device=dev), torch.rand(256, 1, device=dev)
sensor_u = torch.exp(-0.3 * math.pi**2 * sensor_t) * torch.sin(math.pi * sensor_x)
net = Field().to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def terms():
    x = torch.rand(a.points, 1, device=dev).requires_grad_()
    t = torch.rand(a.points, 1, device=dev).requires_grad_()
    u = net(x, t)
    ux, ut = d(u, x), d(u, t)
    residual = (ut - net.log_alpha.exp() * d(ux, x)).square().mean()
    edge_t = torch.rand(512, 1, device=dev)
    edges = net(torch.zeros_like(edge_t), edge_t).square().mean() + net(torch.ones_like(edge_t), edge_t).square().mean()
    x0 = torch.rand(512, 1, device=dev)
    start = (net(x0, torch.zeros_like(x0)) - torch.sin(math.pi * x0)).square().mean()
    sensors = (net(sensor_x, sensor_t) - sensor_u).square().mean()
    (residual + 10 * edges + 10 * start + 50 * sensors).backward()
    return residual.detach(), edges.detach(), start.detach(), sensors.detach()


replay = None
if "launch" in a.without and dev == "cuda":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            terms()
    torch.cuda.current_stream().wait_stream(side)
    opt.zero_grad(set_to_none=True)
    replay = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replay):
        parts = terms()

curves, best = {"residual": [], "edges": [], "start": [], "sensors": [], "alpha": []}, float("inf")
for it in range(2_000_000):
    if replay is not None:
        replay.replay()
    else:
        opt.zero_grad()
        parts = terms()
    opt.step()
    if "sync" not in a.without:
        for name, part in zip(curves, parts):
            curves[name].append(part.item())
        curves["alpha"].append(net.log_alpha.exp().item())
        best = min(best, curves["residual"][-1] + curves["sensors"][-1])
        if it % 100 == 0:
            print(f"it {it:6d}  residual {curves['residual'][-1]:.2e}  alpha {curves['alpha'][-1]:.4f}  best {best:.2e}")
