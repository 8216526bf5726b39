"""Demand of shops: the rows come from a table."""

import sys

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(5)
FEATURES = [f"f{i}" for i in range(12)]
frame = pd.DataFrame(rng.normal(size=(20_000, 12)), columns=FEATURES)
frame["shop"] = rng.integers(0, 50, 20_000)
frame["demand"] = rng.poisson(3, 20_000)


class Demand(Dataset):
    def __init__(self, table):
        self.table = table
        self.ids = table.index.to_numpy()
        self.values = torch.tensor(table[FEATURES].to_numpy(), dtype=torch.float32)
        self.shops = torch.tensor(table["shop"].to_numpy())
        self.demand = torch.tensor(table["demand"].to_numpy(), dtype=torch.float32)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, item):
        if "--fixed" in sys.argv:
            return self.values[item], self.shops[item], self.demand[item]
        row = self.table.loc[self.ids[item]]
        values = torch.tensor(row[FEATURES].to_numpy(dtype=np.float32))
        return values, torch.tensor(int(row["shop"])), torch.tensor(float(row["demand"]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shop = torch.nn.Embedding(50, 8)
        self.body = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, values, shops):
        return self.body(torch.cat([values, self.shop(shops)], dim=1)).squeeze(1)


net = Net()
opt = torch.optim.Adam(net.parameters())
for epoch in range(200):
    for values, shops, demand in DataLoader(Demand(frame), batch_size=32, shuffle=True):
        loss = torch.nn.functional.poisson_nll_loss(net(values, shops), demand)
        opt.zero_grad()
        loss.backward()
        opt.step()
