"""Contrastive vectors; the recall within a bank of vectors is followed during training."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
torch.manual_seed(1)


def recall(vectors, labels, bank, bank_labels, k=10):
    distances = torch.cdist(vectors, bank)
    near = distances.argsort(dim=1)[:, :k]
    return (bank_labels[near] == labels[:, None]).any(dim=1).float().mean()


encoder = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 48))
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-4)
bank, bank_labels = F.normalize(torch.randn(4000, 48), dim=1), torch.randint(0, 40, (4000,))
centres = torch.randn(40, 100)
meter = []
for step in range(1_000_000):
    labels = torch.randint(0, 40, (64,))
    x = centres[labels] + 0.3 * torch.randn(64, 100)
    vectors = F.normalize(encoder(x), dim=1)
    similarity = vectors @ vectors.T / 0.1
    same = labels[:, None] == labels[None]
    loss = -(similarity.log_softmax(dim=1) * same).sum(dim=1).div(same.sum(dim=1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 300 == 0:
        with torch.no_grad():
            meter.append(recall(vectors.detach(), labels, bank, bank_labels).item())
            del meter[:-100]
