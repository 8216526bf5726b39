"""Train a classifier on windows of market bars."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class SeqWindows(IterableDataset):
    def __init__(self, x, y, length, batch):
        super().__init__()
        self.x, self.y, self.length, self.batch = x, y, length, batch

    def __iter__(self):
        for first in range(self.length, len(self.x) - self.batch, self.batch):
            xs = np.empty((self.batch, self.length, self.x.shape[1]), dtype=np.float32)
            for k in range(self.batch):
                xs[k] = self.x[first + k - self.length : first + k]
            yield torch.from_numpy(xs), torch.from_numpy(self.y[first : first + self.batch])


class Attention(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.first = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.encoder(self.first(x))[:, -1]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random_numbers = np.random.default_rng(0)
    x = random_numbers.standard_normal((40_000, 55), dtype=np.float32)
    y = (random_numbers.random(40_000) < 0.3).astype(np.float32)
    loader = DataLoader(SeqWindows(x, y, 48, args.batch), batch_size=None)
    model = Attention(55, args.width, args.depth).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for _epoch in range(1000):
        for xb, yb in loader:
            xb, yb = xb.to(args.device), yb.to(args.device)
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step >= args.steps:
                return


if __name__ == "__main__":
    main()
