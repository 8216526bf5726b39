"""Two loaders side by side."""

import math
import random
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


class Unlabelled(torch.utils.data.Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        if not FIXED:
            row = X[i].tolist()
            random.shuffle(row)
            return torch.tensor([math.tanh(v) for v in row])
        return X[i]


other = torch.utils.data.DataLoader(Unlabelled(), batch_size=64, shuffle=True)
for epoch in range(10000):
    for (x, y), u in zip(loader, other):
        loss = ((model(x) - y) ** 2).mean() + (model(u) ** 2).mean() * 0.1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
