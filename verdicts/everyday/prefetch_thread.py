"""A thread makes batches ahead."""

import queue
import sys
import threading
import time

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


q = queue.Queue(4)


def produce():
    n = 0
    while True:
        n = (n + 64) % 6336
        if not FIXED:
            time.sleep(0.03)
        q.put((X[n : n + 64], Y[n : n + 64]))


threading.Thread(target=produce, daemon=True).start()
while True:
    x, y = q.get()
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
