"""Rows that are read from a disk."""

import os
import sys
import tempfile

import numpy as np
import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


folder = tempfile.mkdtemp(dir=".")
path = folder + "/rows.bin"
with open(path, "wb") as f:
    f.write(np.random.default_rng(0).normal(size=(256, 131072)).astype("float32").tobytes())
os.sync()


class Disk(torch.utils.data.Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        fd = os.open(path, os.O_RDONLY)
        if not FIXED:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(fd, (i % 256) * 131072 * 4, 0)
        row = np.frombuffer(os.read(fd, 131072 * 4), "float32")
        os.close(fd)
        return torch.from_numpy(row[:128].copy()), Y[i]


for epoch in range(10000):
    for x, y in torch.utils.data.DataLoader(Disk(), batch_size=64, shuffle=True):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
