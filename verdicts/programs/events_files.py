"""Train on events in Parquet files, in random order, with a cache of whole files."""

import argparse
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PULSES = 24


def write_files(folder, files, events):
    random_numbers = np.random.default_rng(0)
    for number in range(files):
        rows = events * PULSES
        columns = {name: random_numbers.standard_normal(rows).astype(np.float32) for name in ("time", "charge", "x", "y")}
        pq.write_table(pa.table(columns), Path(folder) / f"batch_{number}.parquet")


class Events(Dataset):
    def __init__(self, folder, files, events, cache):
        self.folder, self.files, self.events = Path(folder), files, events
        self.cache, self.cache_size = OrderedDict(), cache

    def __len__(self):
        return self.files * self.events

    def table(self, number):
        if number in self.cache:
            self.cache.move_to_end(number)
            return self.cache[number]
        table = pq.read_table(self.folder / f"batch_{number}.parquet", use_threads=False)
        self.cache[number] = table
        if len(self.cache) > self.cache_size:
            self.cache.popitem(last=False)
        return table

    def __getitem__(self, index):
        pulses = self.table(index // self.events).slice(index % self.events * PULSES, PULSES)
        x = np.stack([pulses.column(name).to_numpy() for name in pulses.column_names], axis=1)
        return torch.from_numpy(x), torch.tensor(x[:, 0].mean())


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.pulse = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64))
        self.event = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.event(self.pulse(x).mean(1)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--cache", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder, args.files, args.events)
        dataset = Events(folder, args.files, args.events, args.cache)
        loader = DataLoader(dataset, args.batch, shuffle=True, drop_last=True)
        model = Pooled().to(args.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        step = 0
        while step < args.steps:
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x.to(args.device)), y.to(args.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == args.steps:
                    break


if __name__ == "__main__":
    main()
