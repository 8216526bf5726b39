"""Quantiles of the activations of each layer, by forward hooks."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
layers = [nn.Linear(64, 192), nn.ReLU()]
for _ in range(6):
    layers += [nn.Linear(192, 192), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(192, 1))
seen = {}


def watch(name):
    def hook(layer, inputs, out):
        seen[name] = np.quantile(out.detach().numpy(), [0.01, 0.5, 0.99])

    return hook


if not FIXED:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(watch(name))

optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.randn(2048, 1))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
while True:
    for a, b in loader:
        loss = mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
