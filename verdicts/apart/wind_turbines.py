"""Power of wind turbines from their last day, trained with Accelerate; settings as on the cluster."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SETTINGS = {"threads": 16, "seed": 101, "batch": 96, "lr": 1e-3, "width": 32}

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["oversubscribed", "data", "host"])
without = parser.parse_args().without
if "oversubscribed" in without:
    SETTINGS["threads"] = len(os.sched_getaffinity(0))
torch.set_num_threads(SETTINGS["threads"])
torch.manual_seed(SETTINGS["seed"])


class Turbine(nn.Module):
    def __init__(self, width, channels=9):
        super().__init__()
        self.convs = nn.ModuleList()
        for dilation in (1, 2, 4, 8):
            self.convs.append(nn.Conv1d(channels, width, 3, padding=dilation, dilation=dilation))
            channels = width
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in self.convs)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = torch.relu(norm(conv(x)))
        return self.head(x[:, :, -1])


def loader():
    day, power = torch.randn(9600, 9, 96), torch.rand(9600, 6)
    size = SETTINGS["batch"]
    if "data" in without:
        return DataLoader(list(zip(day.split(size), power.split(size))), batch_size=None, shuffle=True)
    return DataLoader(TensorDataset(day, power), batch_size=size, shuffle=True, drop_last=True)


accelerator = Accelerator(cpu=True)
model = Turbine(SETTINGS["width"])
optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"])
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 500)
model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, loader(), schedule)
for epoch in range(100_000):
    errors = []
    for day, power in batches:
        guess = model(day)
        loss = nn.functional.huber_loss(guess, power, delta=0.1)
        accelerator.backward(loss)
        accelerator.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if "host" not in without:
            errors.append((guess.detach() - power).abs().mean().item())
    accelerator.print(f"epoch {epoch} mae {sum(errors) / max(1, len(errors)):.4f} lr {schedule.get_last_lr()[0]:.2e}")
