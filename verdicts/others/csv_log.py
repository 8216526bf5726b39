import csv
import json
import time

import torch
from torch import nn


class Logger:
    def __init__(self, path):
        self.f = open(path, "w", newline="")
        self.w = csv.writer(self.f)

    def log(self, step, model, loss):
        row = {"step": step, "loss": loss, "time": time.time()}
        for n, p in model.named_parameters():
            vals = p.detach().flatten().tolist()
            row[n + ".norm"] = sum(v * v for v in vals) ** 0.5
            row[n + ".max"] = max(vals)
        self.w.writerow(list(row.values()))
        self.f.flush()
        with open("last.json", "w") as f:
            json.dump(row, f)


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.opt = torch.optim.RMSprop(self.net.parameters(), 1e-4)
        self.log = Logger("train_log.csv")

    def batches(self):
        data = [torch.randn(512, 64) for _ in range(40)]
        for _ in range(500):
            yield from data

    def step(self, i, x):
        # log before the update, beside the forward pass
        out = self.net(x)
        loss = (out - x).pow(2).mean()
        self.log.log(i, self.net, loss.item())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def fit(self):
        for i, x in enumerate(self.batches()):
            self.step(i, x)


Trainer().fit()
