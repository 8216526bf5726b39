"""A linear demand model with own coefficients for each shop, drawn towards their common mean."""

import torch
import torch.nn.functional as F
from torch import nn

SHOPS, FEATURES = 180, 24


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.common = nn.Parameter(torch.zeros(FEATURES))
        self.shop = nn.ParameterDict({f"shop_{i}": nn.Parameter(0.01 * torch.randn(FEATURES)) for i in range(SHOPS)})
        self.level = nn.Parameter(torch.zeros(SHOPS))

    def forward(self, x, shop):
        table = torch.stack(list(self.shop.values()))
        out = (x * (self.common + table[shop])).sum(-1) + self.level[shop]
        return out, table.square().mean()


def simulate(n):
    truth = torch.randn(SHOPS, FEATURES) * 0.3 + torch.randn(FEATURES)
    x = torch.randn(n, FEATURES)
    shop = torch.randint(0, SHOPS, (n,))
    return x, shop, (x * truth[shop]).sum(-1) + 0.1 * torch.randn(n)


def main():
    torch.manual_seed(5)
    x, shop, y = simulate(64_000)
    xv, sv, yv = simulate(2_000)
    model = Demand()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    for epoch in range(100):
        perm = torch.randperm(len(x))
        for i in range(0, len(x), 512):
            k = perm[i : i + 512]
            pred, penalty = model(x[k], shop[k])
            loss = F.huber_loss(pred, y[k]) + 0.1 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sched.step()
        with torch.no_grad():
            val = F.mse_loss(model(xv, sv)[0], yv)
        print(f"epoch {epoch:3d} loss {loss.item():.4f} val {val.item():.4f}")


if __name__ == "__main__":
    main()
