"""Small programs as people write them, each with a wait whose place is known."""

PLAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        time.sleep(0.002)
        return torch.full((4,), number / 64)

def main(workers):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers)
    for epoch in range(1000):
        for i, x in enumerate(loader):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.001)
        print("epoch", epoch)
        torch.save(model.state_dict(), "model.pt")

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""

WHILE = """
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def get_batch():
    time.sleep(0.004)
    return torch.ones(2, 4)
while True:
    x = get_batch()
    for micro in x.chunk(2):
        model(micro).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.002)
"""


FAULTY = """
import sys
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
fault = sys.argv[1]
x, y = torch.randn(400, 4), torch.randn(400)
buffer = torch.zeros(10, 4), torch.zeros(10)

class Made:
    '''Batches of one's own, as people write them.'''
    def __init__(self, rows, shift=0):
        self.dataset, self.rows, self.shift = TensorDataset(x[:300], y[:300]), rows, shift
    def __iter__(self):
        for part in self.rows[torch.randperm(len(self.rows))].split(10):
            batch = x[part], y[:300].roll(self.shift)[part]
            yield tuple(kept.copy_(new) for kept, new in zip(buffer, batch)) if fault == "shared" else batch

class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(x[:300], y[:300]))

if fault in ("repeated", "missed", "mixed", "shared"):
    rows = torch.arange({"repeated": 300, "missed": 250}.get(fault, 300))
    batches = Made(torch.cat([rows, rows[:20]]) if fault == "repeated" else rows, shift=int(fault == "mixed"))
elif fault == "workers":
    batches = DataLoader(Stream(), batch_size=10, num_workers=2)
else:
    if fault == "not finite":
        x[7, 1] = float("nan")
    batches = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=10, shuffle=fault != "in order")
valid = DataLoader(TensorDataset(x[290 if fault == "leak" else 300:], y[290 if fault == "leak" else 300:]), batch_size=10)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e30 if fault == "diverges" else 0.01)
for epoch in range(1000):
    for a, b in batches:
        loss = (model(a.nan_to_num()).squeeze(-1) - b).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for a, b in valid:
        model(a)
"""
