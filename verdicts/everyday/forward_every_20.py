"""A model that does more in every 20th forward pass."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = model, 0

    def refresh(self):
        return torch.linalg.eigvalsh(torch.randn(1000, 1000, dtype=torch.float64))

    def forward(self, x):
        self.calls += 1
        if not FIXED and self.calls % 20 == 0:
            self.refresh()
        return self.inner(x)


net = Net()
for epoch in range(10000):
    for x, y in loader:
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
