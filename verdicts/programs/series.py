"""Train a forecaster on windows of series in binary files."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Windows of the series of a file; each is read, normalised as a whole, cut and padded."""

    def __init__(self, folder, series, points, length, baked):
        random_numbers = np.random.default_rng(0)
        values = random_numbers.standard_normal((series, points), dtype=np.float32)
        self.path = Path(folder) / "data-1-of-1.bin"
        values.tofile(self.path)
        self.series, self.points, self.length = series, points, length
        self.windows = max(1, (points - 1) // length)
        self.baked = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True) if baked else None

    def __len__(self):
        return self.series * self.windows

    def sequence(self, number):
        if self.baked is not None:
            return self.baked[number]
        sequence = np.empty(self.points, dtype=np.float32)
        with self.path.open("rb", buffering=0) as file:
            file.seek(number * self.points * 4)
            file.readinto(sequence)
        return (sequence - sequence.mean()) / sequence.std()

    def __getitem__(self, index):
        start = index % self.windows * self.length
        window = self.sequence(index // self.windows)[start : start + self.length + 1]
        padding = self.length + 1 - len(window)
        window = np.pad(window, (0, padding))
        mask = np.pad(np.ones(self.length - padding, dtype=np.float32), (0, padding))
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:]), torch.from_numpy(mask)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        weights = weights + mask
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = nn.functional.dropout(weights, 0.0, self.training)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.silu(self.up(self.norm_2(x))))


class Forecaster(nn.Module):
    def __init__(self, width, depth, heads, length):
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 1)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        x = self.embed(x.unsqueeze(-1))
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--points", type=int, default=2048)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--baked", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Windows(folder, args.series, args.points, args.length, args.baked)
        loader = DataLoader(dataset, args.batch, shuffle=True, drop_last=True)
        model = Forecaster(args.width, args.depth, args.heads, args.length).to(args.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step = 0
        while step < args.steps:
            for x, y, mask in loader:
                x, y, mask = x.to(args.device), y.to(args.device), mask.to(args.device)
                loss = (nn.functional.huber_loss(model(x), y, reduction="none") * mask).sum() / mask.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step >= args.steps:
                    break


if __name__ == "__main__":
    main()
