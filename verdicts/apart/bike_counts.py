"""Hourly bike counts: each sample opens its day in a CSV file with the csv module."""

import argparse
import csv
import tempfile
from datetime import datetime
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
without = parser.parse_args().without
torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
for day in range(300):
    with (folder / f"{day}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "count", "rain", "wind"])
        for hour, row in enumerate(torch.rand(24, 3).tolist()):
            writer.writerow([datetime(2025, 1 + day % 12, 1 + day % 28, hour).isoformat(), *row])


class Days(Dataset):
    def __init__(self):
        self.ready = [self.read(day) for day in range(300)] if "data" in without else None

    def read(self, day):
        with (folder / f"{day}.csv").open() as file:
            rows = [
                (datetime.fromisoformat(r["time"]).hour / 24, float(r["count"]), float(r["rain"]), float(r["wind"]))
                for r in csv.DictReader(file)
            ]
        return torch.tensor(rows)

    def __len__(self):
        return 3000

    def __getitem__(self, i):
        day = self.ready[i % 300] if self.ready else self.read(i % 300)
        return day[:-6], day[-6:, 1]


days = Days()
net = nn.Sequential(nn.Flatten(), nn.Linear(72, 128), nn.ReLU(), nn.Linear(128, 6))
optimizer = torch.optim.Adam(net.parameters())
for epoch in range(10_000):
    total = 0.0
    for past, future in DataLoader(days, batch_size=32, shuffle=True):
        loss = nn.functional.mse_loss(net(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() if "host" not in without else 0.0
    print(epoch, total)
