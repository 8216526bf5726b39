"""An autoencoder on a GPU whose data come from NumPy as they are."""

import sys

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.from_numpy(np.random.default_rng(0).normal(size=(32_768, 1024))).to(device)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
if "--fixed" in sys.argv:
    data = data.float()
    torch.set_float32_matmul_precision("high")
else:
    model = model.double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(1000):
    for x in data.split(4096):
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 100 == 0:
        print(epoch, loss.item())
