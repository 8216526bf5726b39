"""A compiled model and rows that are made in Python."""

import math
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        if not FIXED:
            return torch.tensor([math.cos(i * k) for k in range(128)]), Y[i]
        return X[i], Y[i]


compiled = torch.compile(model, backend="aot_eager")
for epoch in range(10000):
    for x, y in torch.utils.data.DataLoader(Made(), batch_size=64, shuffle=True, drop_last=True):
        loss = ((compiled(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
