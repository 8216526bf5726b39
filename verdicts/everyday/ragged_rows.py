"""Sequences of different lengths, padded to the longest of a batch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)


class Tracks(Dataset):
    def __init__(self, count=3000):
        lengths = torch.randint(20, 90, (count,))
        self.points = [torch.randn(int(n), 6) for n in lengths]
        self.speed = torch.randn(count)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i], self.speed[i]


def padded(samples):
    points, speed = zip(*samples)
    if "--fixed" in sys.argv:
        return nn.utils.rnn.pad_sequence(points, batch_first=True), torch.stack(speed)
    width = max(len(track) for track in points)
    out = torch.zeros(len(points), width, 6)
    for row, track in enumerate(points):
        for column, point in enumerate(track):
            out[row, column] = point
    return out, torch.stack(speed)


loader = DataLoader(Tracks(), batch_size=48, shuffle=True, collate_fn=padded)
net = nn.Sequential(nn.Linear(6, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
head = nn.Linear(96, 1)
opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
seen = 0
while seen < 10**9:
    for batch, speed in loader:
        opt.zero_grad(set_to_none=True)
        prediction = head(net(batch).amax(dim=1)).squeeze(-1)
        error = nn.functional.huber_loss(prediction, speed)
        error.backward()
        opt.step()
        seen += len(speed)
