"""Tell DNA sequences with a planted motif from random ones."""

import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

BASES = "ACGT"
PARTNER = {"A": "T", "C": "G", "G": "C", "T": "A"}
LENGTH = 200


def mutate(seq, rate=0.02):
    return "".join(random.choice(BASES) if random.random() < rate else base for base in seq)


def reverse_complement(seq):
    return "".join(PARTNER[base] for base in reversed(seq))


def one_hot(seq):
    x = np.zeros((4, len(seq)), dtype=np.float32)
    for i, base in enumerate(seq):
        x[BASES.index(base), i] = 1.0
    return x


class Background(Dataset):
    label = 0.0

    def __init__(self, n):
        self.seqs = ["".join(random.choices(BASES, k=LENGTH)) for _ in range(n)]

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        seq = mutate(self.seqs[i])
        if random.random() < 0.5:
            seq = reverse_complement(seq)
        return torch.from_numpy(one_hot(seq)), torch.tensor(self.label)


class Planted(Background):
    label = 1.0

    def __init__(self, n, motif="TGACTCAGCA"):
        super().__init__(n)
        for i, seq in enumerate(self.seqs):
            p = random.randrange(LENGTH - len(motif))
            self.seqs[i] = seq[:p] + motif + seq[p + len(motif) :]


class MotifNet(nn.Module):
    def __init__(self, filters=8, width=10):
        super().__init__()
        self.conv = nn.Conv1d(4, filters, width, stride=2)
        self.out = nn.Linear(filters, 1)

    def forward(self, x):
        h = torch.relu(self.conv(x)).amax(-1)
        return self.out(h).squeeze(-1)


random.seed(1)
torch.manual_seed(1)
loader = DataLoader(ConcatDataset([Background(4096), Planted(4096)]), batch_size=32, shuffle=True)
model = MotifNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(1000):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    print(f"epoch {epoch}: bce {total / len(loader):.4f}")
