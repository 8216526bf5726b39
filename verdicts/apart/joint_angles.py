"""Estimate joint angles of an arm. Eight workers, because the cluster had 64 cores."""

import sys

import torch
from torch import nn

without = sys.argv[2::2]
torch.manual_seed(4)


class Arms(torch.utils.data.Dataset):
    lengths = torch.tensor([0.4, 0.3, 0.2, 0.1])

    def __len__(self):
        return 4_000

    def __getitem__(self, i):
        angles = torch.rand(4, generator=torch.Generator().manual_seed(i)) * 3.14
        along = angles.cumsum(0)
        return torch.stack([along.cos(), along.sin()]) @ self.lengths, angles


def main():
    workers = 0 if "data" in without else 8
    loader = torch.utils.data.DataLoader(Arms(), batch_size=64, shuffle=True, num_workers=workers)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(1_000):
        for hand, angles in loader:
            loss = (net(hand) - angles).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        if "host" not in without:
            print(epoch, loss.item())


if __name__ == "__main__":
    main()
