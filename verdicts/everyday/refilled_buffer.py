"""Samples are parsed into a shuffle buffer, which is filled again when it is empty."""

import json
import random
import sys

import torch
from torch import nn

draw = random.Random(0)
LINES = [json.dumps({"x": [draw.random() for _ in range(64)], "y": draw.random()}) for _ in range(4000)]
BUFFER, BATCH = 2000, 50
PARSED = [json.loads(line) for line in LINES] if "--fixed" in sys.argv else None


def rows():
    while True:
        yield from (PARSED if PARSED is not None else map(json.loads, LINES))


def batches(source):
    while True:
        buffer = [next(source) for _ in range(BUFFER)]
        draw.shuffle(buffer)
        x = torch.tensor([row["x"] for row in buffer]) if PARSED is None else HELD
        y = torch.tensor([row["y"] for row in buffer])
        yield from zip(x.split(BATCH), y.split(BATCH))


HELD = torch.tensor([row["x"] for row in PARSED[:BUFFER]]) if PARSED is not None else None
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(batches(rows())):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    loss.backward()
    optimizer.step()
    if step == 200_000:
        break
