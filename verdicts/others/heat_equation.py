"""A physics-informed network for u_t = 0.1 u_xx on [0, 1], u(x, 0) = sin(pi x)."""

import argparse
import math

import torch
from torch import nn
from torch.autograd import grad


def make_net(width, depth):
    layers = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def residual(net, x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = net(torch.cat([x, t], dim=1))
    u_x, u_t = grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = grad(u_x.sum(), x, create_graph=True)
    return u_t - 0.1 * u_xx


def exact(x, t):
    return torch.exp(-0.1 * math.pi**2 * t) * torch.sin(math.pi * x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=100_000)
    ap.add_argument("--points", type=int, default=48)
    ap.add_argument("--width", type=int, default=20)
    ap.add_argument("--depth", type=int, default=5)
    args = ap.parse_args()

    torch.manual_seed(0)
    net = make_net(args.width, args.depth)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    grid_x, grid_t = torch.meshgrid(torch.linspace(0, 1, 21), torch.linspace(0, 1, 21), indexing="ij")
    grid_x, grid_t = grid_x.reshape(-1, 1), grid_t.reshape(-1, 1)

    for it in range(args.iters):
        x, t = torch.rand(args.points, 1), torch.rand(args.points, 1)
        loss_pde = residual(net, x, t).pow(2).mean()

        x0 = torch.rand(args.points, 1)
        u0 = net(torch.cat([x0, torch.zeros_like(x0)], dim=1))
        loss_ic = (u0 - torch.sin(math.pi * x0)).pow(2).mean()

        tb = torch.rand(args.points, 1)
        left = net(torch.cat([torch.zeros_like(tb), tb], dim=1))
        right = net(torch.cat([torch.ones_like(tb), tb], dim=1))
        loss_bc = (left**2 + right**2).mean()

        loss = loss_pde + 10 * loss_ic + 10 * loss_bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 500 == 0:
            with torch.no_grad():
                err = (net(torch.cat([grid_x, grid_t], 1)) - exact(grid_x, grid_t)).abs().max()
            print(f"{it:6d} pde {loss_pde.item():.2e} ic {loss_ic.item():.2e} bc {loss_bc.item():.2e} err {err.item():.3f}")


if __name__ == "__main__":
    main()
