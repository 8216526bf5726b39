"""Herbarium scans by species in Lightning; leaves are turned and bent a little before each use."""

import argparse
import math
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["data", "host"])
without = parser.parse_args().without
SIDE, SPECIES = 28, 20


class Scans(Dataset):
    def __init__(self, n=1600):
        rng = np.random.default_rng(8)
        self.scans = rng.random((n, SIDE, SIDE), dtype=np.float32)
        self.labels = rng.integers(SPECIES, size=n)
        columns, rows = np.meshgrid(np.arange(SIDE, dtype=np.float32), np.arange(SIDE, dtype=np.float32))
        self.columns, self.rows = columns - SIDE / 2, rows - SIDE / 2

    def __len__(self):
        return len(self.scans)

    def bend(self, scan):
        angle, strength, phase = random.uniform(-0.3, 0.3), random.uniform(0, 1.5), random.uniform(0, 6.28)
        out = np.zeros_like(scan)
        sine, cosine = math.sin(angle), math.cos(angle)
        if "data" in without:
            x = self.columns * cosine - self.rows * sine + SIDE / 2 + strength * np.sin(self.rows * 0.3 + phase)
            y = self.columns * sine + self.rows * cosine + SIDE / 2
            inside = (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
            out[inside] = scan[y[inside].astype(int), x[inside].astype(int)]
            return out
        for row in range(SIDE):
            wave = strength * math.sin((row - SIDE / 2) * 0.3 + phase)
            for column in range(SIDE):
                x = (column - SIDE / 2) * cosine - (row - SIDE / 2) * sine + SIDE / 2 + wave
                y = (column - SIDE / 2) * sine + (row - SIDE / 2) * cosine + SIDE / 2
                if 0 <= x < SIDE and 0 <= y < SIDE:
                    out[row, column] = scan[int(y), int(x)]
        return out

    def __getitem__(self, i):
        return torch.from_numpy(self.bend(self.scans[i]))[None], int(self.labels[i])


class Herbarium(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(48 * 49, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, SPECIES),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        scans, species = batch
        logits = self.net(scans)
        loss = nn.functional.cross_entropy(logits, species)
        if "host" not in without:
            self.log("loss", loss, prog_bar=True)
            self.log("accuracy", (logits.argmax(1) == species).float().mean(), prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)


pl.seed_everything(8)
trainer = pl.Trainer(
    max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False
)
trainer.fit(Herbarium(), DataLoader(Scans(), batch_size=16, shuffle=True))
