"""Train a small conv net on npz images."""

import argparse
import glob
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, root):
        self.files = sorted(glob.glob(os.path.join(root, "*.npz")))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        z = np.load(self.files[i])
        return torch.from_numpy(z["img"]), int(z["y"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.c1(x))
        x = torch.relu(self.c2(x))
        return self.fc(x.mean((2, 3)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--root", default="data/npz")
    p.add_argument("--epochs", type=int, default=200)
    p.add_argument("--lr", type=float, default=1e-3)
    a = p.parse_args()
    ds = Images(a.root)
    train, val = torch.utils.data.random_split(ds, [256, 44])
    tl = DataLoader(train, batch_size=32, shuffle=True)
    vl = DataLoader(val, batch_size=44)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    best = 1e9
    for epoch in range(a.epochs):
        net.train()
        for x, y in tl:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            v = sum(nn.functional.cross_entropy(net(x), y).item() for x, y in vl)
        if v < best:
            best = v
            torch.save(net.state_dict(), "best.pt")
        print(f"epoch {epoch} loss {loss.item():.3f} val {v:.3f}")


if __name__ == "__main__":
    main()
