"""A loop over chunks of a file around the training loop."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


def chunks():
    while True:
        order = torch.randperm(6400)
        for c in range(0, 6400, 1280):
            part = order[c : c + 1280]
            if not FIXED:
                rows = sorted(X[part].tolist(), key=lambda r: sum(r))
                yield torch.utils.data.TensorDataset(torch.tensor(rows), Y[part])
            else:
                yield torch.utils.data.TensorDataset(X[part], Y[part])


for chunk in chunks():
    for x, y in torch.utils.data.DataLoader(chunk, batch_size=64):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
