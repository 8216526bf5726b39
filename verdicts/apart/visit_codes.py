"""Masked codes of hospital visits, as in papers on health records: a small encoder with Accelerate, rows of very different lengths."""

import argparse
import random

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Config:
    codes, width, layers, longest = 6000, 192, 4, 320
    patients, batch = 1500, 48


parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["data", "sync"])
without, cfg = parser.parse_args().without, Config()
PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
random.seed(12)
torch.manual_seed(12)


def patient():
    age, visits = random.uniform(1, 80), []
    for _ in range(random.randint(4, 28)):
        age += random.expovariate(2.0)
        visits.append({"age": age, "codes": [random.randrange(FIRST, cfg.codes) for _ in range(random.randint(2, 14))]})
    return visits


def encode(visits):
    ids, ages, parts, places = [CLS], [int(visits[0]["age"])], [0], [0]
    for number, visit in enumerate(visits):
        for code in (*sorted(visit["codes"]), SEP):
            ids.append(code)
            ages.append(min(int(visit["age"]), 119))
            parts.append(number % 2)
            places.append(min(number + 1, 63))
    return [field[: cfg.longest] for field in (ids, ages, parts, places)]


class Patients(Dataset):
    def __init__(self):
        self.rows = [patient() for _ in range(cfg.patients)]
        if "data" in without:
            self.rows = [torch.tensor(encode(row)) for row in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    encoded = [encode(row) for row in rows]
    longest = max(len(row[0]) for row in encoded)
    batch = torch.zeros(4, len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for i, row in enumerate(encoded):
        for k, field in enumerate(row):
            batch[k, i, : len(field)] = torch.tensor(field)
        for j, code in enumerate(row[0]):
            if code >= FIRST and random.random() < 0.15:
                labels[i, j] = code
                batch[0, i, j] = MASK
    return batch, labels


def collate_tensors(rows):
    batch = nn.utils.rnn.pad_sequence([row.T for row in rows], batch_first=True).permute(2, 0, 1).contiguous()
    chosen = (torch.rand(batch[0].shape) < 0.15) & (batch[0] >= FIRST)
    labels = torch.where(chosen, batch[0], -100)
    batch[0][chosen] = MASK
    return batch, labels


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (cfg.codes, 120, 2, 64)
        self.tables = nn.ModuleList(nn.Embedding(size, cfg.width) for size in sizes)
        layer = nn.TransformerEncoderLayer(cfg.width, 6, 4 * cfg.width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.width, cfg.codes)

    def forward(self, fields):
        hidden = sum(table(field) for table, field in zip(self.tables, fields))
        return self.head(self.body(hidden, src_key_padding_mask=fields[0] == PAD))


accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
model = Encoder()
loader = DataLoader(
    Patients(), cfg.batch, shuffle=True, drop_last=True, collate_fn=collate_tensors if "data" in without else collate
)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 3e-4), loader)
for epoch in range(100_000):
    total = 0.0
    for fields, labels in loader:
        loss = nn.functional.cross_entropy(model(fields).flatten(0, 1).float(), labels.flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if "sync" not in without:
            total += loss.item()
    accelerator.print(f"epoch {epoch}: {total / len(loader):.4f}")
