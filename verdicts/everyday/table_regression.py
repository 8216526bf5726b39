"""Regress a property of molecules from descriptors that numpy computed."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(11)
descriptors = rng.normal(size=(6000, 384))
energy = descriptors[:, :16].sum(axis=1, keepdims=True) + rng.normal(scale=0.1, size=(6000, 1))
if "--fixed" in sys.argv:
    descriptors, energy = descriptors.astype(np.float32), energy.astype(np.float32)

model = nn.Sequential(nn.Linear(384, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 1))
model.to(torch.from_numpy(descriptors).dtype)  # the types have to agree
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
dataset = TensorDataset(torch.from_numpy(descriptors), torch.from_numpy(energy))
sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), batch_size=512, drop_last=True)
loader = DataLoader(dataset, sampler=sampler, batch_size=None)
for epoch in range(10_000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
