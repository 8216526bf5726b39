"""Predict clicks; examples are ordered by how old they are, and the order is made again for every group of batches."""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

REMOVE = {v for k, v in zip(sys.argv[1:], sys.argv[2:]) if k == "--without"}
N, FIELDS, BATCH = 60_000, 12, 256


class Clicks(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(4)
        self.fields = torch.randint(0, 2000, (N, FIELDS), generator=g)
        self.click = (torch.rand(N, generator=g) < 0.2).float()

    def __len__(self):
        return N

    def __getitems__(self, rows):
        return self.fields[rows], self.click[rows]


class Recent(Sampler):
    """Batches in groups of 14. Rows that were not seen for long are likelier."""

    def __init__(self):
        self.age, self.random = np.ones(N), np.random.default_rng(4)

    def ranked(self):
        if "data" in REMOVE:
            return self.random.choice(N, 14 * BATCH, replace=False, p=self.age / self.age.sum())
        keyed = sorted(range(N), key=lambda i: -(self.random.random() ** (1.0 / self.age[i])))
        return np.array(keyed[: 14 * BATCH])

    def __iter__(self):
        while True:
            rows = self.ranked()
            self.age += 1
            self.age[rows] = 1
            yield from rows.reshape(14, BATCH).tolist()


class CrossNet(torch.nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(2000, dim, sparse="optimizer" in REMOVE) for _ in range(FIELDS))
        self.cross = torch.nn.ModuleList(torch.nn.Linear(FIELDS * dim, FIELDS * dim) for _ in range(3))
        self.out = torch.nn.Linear(FIELDS * dim, 1)

    def forward(self, x):
        first = torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        h = first
        for layer in self.cross:
            h = first * layer(h) + h
        return self.out(h).squeeze(1)


def main():
    torch.manual_seed(4)
    net = CrossNet()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    loader = DataLoader(Clicks(), batch_sampler=Recent(), collate_fn=lambda batch: batch)
    for step, (fields, click) in enumerate(loader):
        loss = F.binary_cross_entropy_with_logits(net(fields), click)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
