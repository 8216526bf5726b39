import torch
from torch import nn


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, o))


G, D = mlp(4, 2), mlp(2, 1)
og, od = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999)), torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)


def real():
    a = torch.rand(32) * 6.283
    return torch.stack([a.cos(), a.sin()], 1)


for it in range(200000):
    x = real()
    z = torch.randn(32, 4)
    fake = G(z)
    ld = bce(D(x), ones) + bce(D(fake.detach()), zeros)
    od.zero_grad()
    ld.backward()
    od.step()
    lg = bce(D(fake), ones)
    og.zero_grad()
    lg.backward()
    og.step()
    if it % 1000 == 0:
        print(it, ld.item(), lg.item())
