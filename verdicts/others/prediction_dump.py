import json
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECORD = np.dtype([("x", "<f4", 16), ("y", "<u4")])
rows = np.fromfile("data/records.bin", dtype=RECORD)[:50_000]
x_all = torch.from_numpy(rows["x"].copy())
y_all = torch.from_numpy(rows["y"].astype("i8"))

NAMES = ["red", "green", "blue", "grey"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 96)
        self.fc2 = nn.Linear(96, 96)
        self.fc3 = nn.Linear(96, 4)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def describe(step, logits, target):
    """One line for each sample of the batch, so that hard ones can be looked up later."""
    probs = logits.softmax(-1).tolist()
    out = []
    for n, (p, t) in enumerate(zip(probs, target.tolist())):
        best = max(range(4), key=p.__getitem__)
        out.append(
            json.dumps(
                {
                    "step": step,
                    "sample": n,
                    "probs": {name: round(v, 5) for name, v in zip(NAMES, p)},
                    "predicted": NAMES[best],
                    "target": NAMES[t],
                    "correct": best == t,
                }
            )
        )
    return out


# the dataset is small: whole batches are cut beforehand
batches = [(x_all[i : i + 250], y_all[i : i + 250]) for i in range(0, 50_000, 250)]
loader = DataLoader(TensorDataset(torch.arange(len(batches))), batch_size=None, shuffle=True)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=5e-4)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
step = 0
for epoch in range(200):
    for (k,) in loader:
        x, y = batches[int(k)]
        opt.zero_grad()
        logits = net(x)
        loss = loss_fn(logits, y)
        loss.backward()
        opt.step()
        # keeps only the latest steps on disk
        with open("predictions.jsonl", "w" if step % 200 == 0 else "a") as f:
            for line in describe(step, logits.detach(), y):
                f.write(line + "\n")
        step += 1
    print(epoch, loss.item(), os.path.getsize("predictions.jsonl") // 1024, "kB")
