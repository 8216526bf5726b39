"""Compressed shards that are read one after the other."""

import sys
import tempfile
import zlib

import numpy as np
import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


folder = tempfile.mkdtemp()
for s in range(6):
    raw = np.random.default_rng(s).integers(0, 50, (2560, 129)).astype("float32")
    open(f"{folder}/{s}", "wb").write(zlib.compress(raw.tobytes(), 1))


class Shards(torch.utils.data.IterableDataset):
    def __init__(self):
        self.kept = {}

    def load(self, s):
        if FIXED and s in self.kept:
            return self.kept[s]
        for _ in range(32 if not FIXED else 1):
            rows = np.frombuffer(zlib.decompress(open(f"{folder}/{s}", "rb").read()), "float32").reshape(-1, 129)
        rows = rows[np.argsort(rows.sum(1))]
        self.kept[s] = torch.tensor(rows)
        return self.kept[s]

    def __iter__(self):
        while True:
            for s in range(6):
                rows = self.load(s)
                for i in range(0, 2560, 64):
                    yield rows[i : i + 64, :128], rows[i : i + 64, 128:]


for x, y in torch.utils.data.DataLoader(Shards(), batch_size=None):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
