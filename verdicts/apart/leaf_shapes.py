"""Contours of leaves with a transformer of usual size on a CPU: the work is the cost."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
absent = parser.parse_args().without
torch.manual_seed(6)
contours, kinds = torch.randn(640, 96, 4), torch.randint(12, (640,))
layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.0)
net = nn.ModuleDict({"enter": nn.Linear(4, 256), "body": nn.TransformerEncoder(layer, 3), "leave": nn.Linear(256, 12)})
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
if "optimizer" in absent:
    optimizer = torch.optim.SGD(net["leave"].parameters(), lr=0.01)
correct = 0
while True:
    order = torch.arange(640) if "data" in absent else torch.randperm(640)
    for rows in order.split(16):
        scores = net["leave"](net["body"](net["enter"](contours[rows])).mean(1))
        loss = nn.functional.cross_entropy(scores, kinds[rows])
        net.zero_grad()
        loss.backward()
        optimizer.step()
        if "host" not in absent:
            correct += (scores.argmax(1) == kinds[rows]).sum().item()
