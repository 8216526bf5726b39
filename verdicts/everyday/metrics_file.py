"""The metrics of the last steps are in a JSON file, which a web page reads."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

EVERY = 500 if "--fixed" in sys.argv else 1
torch.manual_seed(0)
page = Path(tempfile.mkdtemp()) / "metrics.json"
rows = [{"step": -i, "loss": 1.0, "lr": 1e-3, "norm": 0.5} for i in range(1000, 0, -1)]


def publish(step, **metrics):
    rows.append({"step": step, **metrics})
    del rows[:-1000]
    if step % EVERY == 0:
        with open(page, "w") as file:
            json.dump({"rows": rows, "best": min(row["loss"] for row in rows)}, file, indent=1)


model = nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
x, y = torch.randn(5000, 200), torch.randint(0, 20, (5000,))
for step in range(100_000):
    rows_of_batch = torch.randint(0, 5000, (128,))
    loss = nn.functional.cross_entropy(model(x[rows_of_batch]), y[rows_of_batch], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    publish(step, loss=loss.item(), lr=schedule.get_last_lr()[0], norm=norm.item())
