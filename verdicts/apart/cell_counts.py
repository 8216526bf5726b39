"""Count cells in small pictures. Settings are those of the cluster on which this ran before."""

import os
import sys

import torch
import torch.nn as nn

WITHOUT = frozenset(b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without")
settings = {"threads": 12, "interop": 4, "workers": 0, "batch": 16, "size": 40, "lr": 1e-3}
if "oversubscribed" in WITHOUT:
    settings["threads"] = len(os.sched_getaffinity(0))
torch.set_num_threads(settings["threads"])
torch.set_num_interop_threads(settings["interop"])


class Pictures(torch.utils.data.Dataset):
    def __init__(self, n=2000):
        self.spots = [torch.rand(int(k), 2) for k in torch.randint(1, 12, (n,))]
        grid = torch.linspace(0, 1, settings["size"])
        self.y, self.x = torch.meshgrid(grid, grid, indexing="ij")
        self.ready = [self.draw(s) for s in self.spots] if "data" in WITHOUT else None

    def draw(self, spots):
        picture = torch.zeros_like(self.x)
        for cy, cx in spots.tolist():
            picture += torch.exp(-((self.y - cy) ** 2 + (self.x - cx) ** 2) / 0.002)
        return picture[None]

    def __len__(self):
        return len(self.spots)

    def __getitem__(self, i):
        return (self.ready[i] if self.ready else self.draw(self.spots[i])), float(len(self.spots[i]))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1) for a, b in ((1, 16), (16, 32), (32, 48))])
        self.norm = nn.ModuleList([nn.GroupNorm(4, c) for c in (16, 32, 48)])
        self.end = nn.Linear(48, 1)

    def forward(self, x):
        for conv, norm in zip(self.down, self.norm):
            x = torch.relu(norm(conv(x)))
        return self.end(x.mean((2, 3))).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(31)
    net = Counter()
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"], momentum=0.9)
    loader = torch.utils.data.DataLoader(Pictures(), settings["batch"], shuffle=True, num_workers=settings["workers"])
    epoch = 0
    while True:
        total = 0.0
        for picture, count in loader:
            optimizer.zero_grad()
            loss = (net(picture) - count.float()).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        epoch += 1
        print(f"epoch {epoch}: {total / len(loader):.3f}")
