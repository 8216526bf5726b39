"""Forecast the next reading of a sensor from a window of it and its rolling statistics."""

import argparse

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class SensorWindows(Dataset):
    def __init__(self, path, length=96, stride=24):
        self.series = pd.Series(np.load(path)[:120_000])
        self.length = length
        self.starts = range(0, len(self.series) - length - 1, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, idx):
        s = self.starts[idx]
        win = self.series.iloc[s : s + self.length]
        mean, std = win.mean(), win.std() + 1e-6
        feats = pd.DataFrame({"raw": (win - mean) / std})
        feats["ma"] = feats["raw"].rolling(8, min_periods=1).mean()
        feats["sd"] = feats["raw"].rolling(8, min_periods=1).std().fillna(0.0)
        feats["diff"] = feats["raw"].diff().fillna(0.0)
        target = (self.series.iloc[s + self.length] - mean) / std
        return torch.tensor(feats.to_numpy(dtype="float32")), torch.tensor([target], dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, n_feats=4, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(n_feats, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.head(h[-1])


def evaluate(model, loader):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(nn.functional.mse_loss(model(x), y).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--series", default="data/series.npy")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    dataset = SensorWindows(args.series)
    split = int(0.95 * len(dataset))
    train = DataLoader(Subset(dataset, range(split)), batch_size=args.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Subset(dataset, range(split, len(dataset))), batch_size=args.batch_size, drop_last=True)

    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    for epoch in range(args.epochs):
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        val = evaluate(model, valid)
        scheduler.step(val)
        print(f"epoch {epoch}: train {loss.item():.4f} valid {val:.4f}", flush=True)


if __name__ == "__main__":
    main()
