"""Each sample is a few values from the middle of a long record, which is read as a whole."""

import os
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RECORDS, LENGTH, USED = 64, 500_000, 128


class Records(Dataset):
    def __init__(self, path):
        self.path = path
        random_numbers = np.random.default_rng(0)
        with open(path, "wb") as file:
            for _ in range(RECORDS):
                random_numbers.standard_normal(LENGTH, dtype=np.float32).tofile(file)

    def __len__(self):
        return RECORDS * 100

    def __getitem__(self, index):
        record, middle = index % RECORDS, LENGTH // 2
        file = os.open(self.path, os.O_RDONLY)
        if "--fixed" in sys.argv:
            data = os.pread(file, 4 * USED, 4 * (record * LENGTH + middle))
            window = np.frombuffer(data, np.float32)
        else:
            data = os.pread(file, 4 * LENGTH, 4 * record * LENGTH)
            window = np.frombuffer(data, np.float32)[middle : middle + USED]
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # more records than memory: the next read is cold
        os.close(file)
        return torch.from_numpy(window.copy()), torch.tensor(float(index % 5))


loader = DataLoader(Records("records.bin"), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(USED, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(200):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
