"""Train a classifier; every 40 steps the distribution of each weight is written to a log."""

import json
import sys

import torch
from torch import nn

EVERY = 4000 if "--fixed" in sys.argv else 40


class Log:
    def __init__(self, path):
        self.file = open(path, "w")

    def distributions(self, step, model):
        row = {"step": step}
        for name, weight in model.named_parameters():
            counts = {}
            for value in weight.detach().flatten().tolist():
                place = round(value, 2)
                counts[place] = counts.get(place, 0) + 1
            row[name] = sorted(counts.items())
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


log = Log("weights.jsonl")
model = nn.Sequential(nn.Linear(100, 600), nn.ReLU(), nn.Linear(600, 400), nn.ReLU(), nn.Linear(400, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(10_000, 100), torch.randint(0, 10, (10_000,))
step = 0
for epoch in range(1000):
    for first in range(0, len(x), 100):
        loss = nn.functional.cross_entropy(model(x[first : first + 100]), y[first : first + 100])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            log.distributions(step, model)
