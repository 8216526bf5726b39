"""Events from a compressed file of JSON lines, read by a worker."""

import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

random.seed(0)
FIXED = "--fixed" in sys.argv


class Events(IterableDataset):
    def __init__(self, path):
        self.path = path
        self.kept = torch.tensor([self.row(line) for line in self.lines()]) if FIXED else None

    def lines(self):
        with gzip.open(self.path, "rt") as file:
            yield from file

    @staticmethod
    def row(line):
        event = json.loads(line)
        return [*event["features"], float(event["clicked"])]

    def __iter__(self):
        if FIXED:
            yield from self.kept.split(64)
            return
        rows = []
        for line in self.lines():
            rows.append(self.row(line))
            if len(rows) == 64:
                yield torch.tensor(rows)
                rows = []


def main():
    path = Path(tempfile.mkdtemp()) / "events.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for i in range(12_800):
            record = {"id": i, "features": [random.random() for _ in range(40)], "clicked": random.random() < 0.1}
            file.write(json.dumps(record) + "\n")
    loader = DataLoader(Events(path), batch_size=None, num_workers=1)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(1000):
        for rows in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(rows[:, :40]), rows[:, 40:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
