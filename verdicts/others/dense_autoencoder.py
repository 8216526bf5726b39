import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, n, h, z):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n, h), nn.ReLU(), nn.Linear(h, z))
        self.decoder = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, n))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def get_loaders(width, bs):
    s = torch.from_numpy(np.load("data/series.npy"))
    w = s[: len(s) // width * width].view(-1, width)
    w = torch.cat([w, s[width // 2 : -width // 2][: len(s) // width * width - width].view(-1, width)])
    w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
    w = w[torch.randperm(len(w))]
    n = len(w) // bs * bs - bs
    # one item is a whole batch
    return (
        DataLoader(TensorDataset(w[:n].view(-1, bs, width)), batch_size=None, shuffle=True),
        DataLoader(TensorDataset(w[n : n + bs].view(1, bs, width)), batch_size=None),
    )


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=500)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--latent", type=int, default=64)
    ap.add_argument("--bs", type=int, default=384)
    ap.add_argument("--epochs", type=int, default=2000)
    opt = ap.parse_args()

    torch.manual_seed(0)
    tr, va = get_loaders(opt.width, opt.bs)
    ae = AutoEncoder(opt.width, opt.hidden, opt.latent)
    sgd = torch.optim.SGD(ae.parameters(), lr=0.1)
    best = float("inf")
    for e in range(opt.epochs):
        ae.train()
        for (x,) in tr:
            loss = (ae(x) - x).pow(2).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        if e % 20 == 0:
            ae.eval()
            with torch.no_grad():
                v = sum((ae(x) - x).pow(2).mean().item() for (x,) in va)
            print(f"{e:4d} train {loss.item():.4f} val {v:.4f}")
            if v < best:
                best = v
                torch.save(ae.state_dict(), "autoencoder.pt")
