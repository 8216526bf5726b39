import os
import struct

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

REC = struct.calcsize("<16fI")


class Records(IterableDataset):
    """streams fixed-size records, random access"""

    def __init__(self, path, seed=0):
        self.path, self.seed = path, seed

    def __iter__(self):
        info = get_worker_info()
        wid = info.id if info else 0
        n = info.num_workers if info else 1
        total = os.path.getsize(self.path) // REC
        g = torch.Generator().manual_seed(self.seed + wid)
        for i in (torch.randperm(total // n, generator=g) * n + wid).tolist():
            with open(self.path, "rb") as f:
                f.seek(i * REC)
                *x, y = struct.unpack("<16fI", f.read(REC))
            yield torch.tensor(x), y


def train():
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    for epoch in range(10):
        for x, y in DataLoader(Records("data/records.bin"), batch_size=256, num_workers=2):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y.long())
            loss.backward()
            opt.step()
        print("epoch", epoch, loss.item())


if __name__ == "__main__":
    train()
