"""The samples of this project, and the ways to load them."""

import random
import tempfile
from pathlib import Path

import models
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


def arrays(args):
    """Inputs and targets of all rows."""
    random_numbers = np.random.default_rng(args.seed)
    if args.model in models.TAKES_CATEGORIES:
        x = random_numbers.integers(0, args.categories, (args.rows, args.features))
    elif args.model in models.TAKES_ROWS:
        x = random_numbers.standard_normal((args.rows, args.features), dtype=np.float32)
    else:
        x = random_numbers.standard_normal((args.rows, args.time, args.features), dtype=np.float32)
    return x, random_numbers.standard_normal(args.rows, dtype=np.float32)


class Memory(Dataset):
    """Rows in memory; takes one number or many."""

    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Lines(Dataset):
    """Rows as lines of text."""

    def __init__(self, x, y):
        self.shape, self.dtype = x.shape[1:], torch.from_numpy(x[:1]).dtype
        self.lines = [",".join(f"{v:.5g}" for v in row.ravel()) + f";{target:.5g}" for row, target in zip(x, y, strict=True)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        values, target = self.lines[index].split(";")
        row = [float(value) for value in values.split(",")]
        return torch.tensor(row).to(self.dtype).reshape(self.shape), torch.tensor(float(target))


class Files(Dataset):
    """Rows in compressed files of many rows each."""

    def __init__(self, x, y, rows_a_file):
        self.folder = tempfile.TemporaryDirectory()
        self.rows_a_file, self.count = rows_a_file, len(y)
        for number, start in enumerate(range(0, len(y), rows_a_file)):
            part = slice(start, start + rows_a_file)
            np.savez_compressed(Path(self.folder.name) / f"{number}.npz", x=x[part], y=y[part])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with np.load(Path(self.folder.name) / f"{index // self.rows_a_file}.npz") as file:
            x, y = file["x"], file["y"]
        row = index % self.rows_a_file
        return torch.from_numpy(x[row]), torch.tensor(y[row])


class Lists(Dataset):
    """Rows as lists of numbers."""

    def __init__(self, x, y):
        self.shape, self.dtype = x.shape[1:], torch.from_numpy(x[:1]).dtype
        self.x, self.y = [row.ravel().tolist() for row in x], y.tolist()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def collate(self, rows):
        longest = max(len(row) for row, _ in rows)
        padded = []
        for row, _ in rows:
            mean = sum(row) / len(row)
            padded.append([value - mean for value in row] + [0.0] * (longest - len(row)))
        x = torch.tensor(padded)
        if not self.dtype.is_floating_point:
            x = torch.tensor([row for row, _ in rows])
        return x.reshape(len(rows), *self.shape), torch.tensor([target for _, target in rows])


def worker_threads(threads):
    def start(number):
        torch.set_num_threads(threads)

    return start


def loader(args):
    """Batches as the arguments ask for them."""
    x, y = arrays(args)
    options = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    if args.worker_threads:
        options["worker_init_fn"] = worker_threads(args.worker_threads)
    if args.samples in ("ready", "resident"):
        batches = [
            (torch.from_numpy(x[i : i + args.batch]), torch.from_numpy(y[i : i + args.batch]))
            for i in range(0, args.rows, args.batch)
        ]
        return [(a.to(args.device), b.to(args.device)) for a, b in batches] if args.samples == "resident" else batches
    if args.samples == "memory":
        dataset = Memory(x, y)
        return DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), args.batch, True), **options)
    if args.samples == "rows":
        return DataLoader(Memory(x, y), batch_size=args.batch, shuffle=True, drop_last=True, **options)
    if args.samples == "lines":
        return DataLoader(Lines(x, y), batch_size=args.batch, shuffle=True, drop_last=True, **options)
    if args.samples == "files":
        return DataLoader(Files(x, y, args.rows_a_file), batch_size=args.batch, shuffle=True, drop_last=True, **options)
    dataset = Lists(x, y)
    return DataLoader(dataset, batch_size=args.batch, shuffle=True, drop_last=True, collate_fn=dataset.collate, **options)


def stream(args):
    """Batches from records, one after the other, for ever."""
    x, y = arrays(args)
    shape = x.shape[1:]
    names = [f"f{i}" for i in range(int(np.prod(shape)))]
    if args.samples == "memory":
        held_x, held_y = torch.from_numpy(x), torch.from_numpy(y)
        while True:
            rows = torch.randint(args.rows, (args.batch,))
            yield held_x[rows], held_y[rows]
    records = [dict(zip(names, row.ravel().tolist(), strict=True)) | {"target": float(t)} for row, t in zip(x, y, strict=True)]
    while True:
        chosen = [random.choice(records) for _ in range(args.batch)]
        x_rows = torch.tensor([[record[name] for name in names] for record in chosen])
        yield x_rows.reshape(-1, *shape), torch.tensor([record["target"] for record in chosen])
