"""A large table of vectors, of which a step uses few."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300000 if not FIXED else 3000, 48)
        self.head = nn.Linear(48, 1)

    def forward(self, i):
        return self.head(self.table(i).mean(1))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randint(0, 3000, (6400, 10)), torch.randn(6400, 1))
for epoch in range(10000):
    for i, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        loss = ((model(i) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
