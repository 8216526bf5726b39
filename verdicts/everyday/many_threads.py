"""A small network on a machine whose number of threads was set for a larger one."""

import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.set_num_threads(1 if "--fixed" in sys.argv else 16)
torch.manual_seed(0)
x, y = torch.randn(4096, 256), torch.randn(4096, 1)
model = nn.Sequential(
    nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 1)
)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=256, shuffle=True)
while True:
    for a, b in loader:
        loss = mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
