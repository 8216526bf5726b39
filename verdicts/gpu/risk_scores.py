"""Risk of claims by a residual network with Accelerate; scores of the latest claims are judged by scikit-learn."""

import sys
from collections import deque

import numpy as np
import torch
from accelerate import Accelerator
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OFF = sys.argv[2::2]
torch.manual_seed(13)


class ResidualNet(nn.Module):
    def __init__(self, features=80, width=192, depth=8):
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.blocks = nn.ModuleList()
        for _ in range(depth // 4 if "launch" in OFF else depth):
            self.blocks.append(nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(0.1)))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x).squeeze(-1)


accelerator = Accelerator()
x = torch.randn(40_000, 80)
y = (x[:, :5].sum(1) + torch.randn(40_000) > 2).float()
model = ResidualNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if "data" in OFF:
    x, y = x.to(accelerator.device), y.to(accelerator.device)
    loader = [(x[i : i + 256], y[i : i + 256]) for i in range(0, 39_936, 256)]
    model, optimizer = accelerator.prepare(model, optimizer)
else:
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

scores, truths = deque(maxlen=32), deque(maxlen=32)
model.train()
for epoch in range(100_000):
    for features, target in loader:
        logits = model(features)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if "host" not in OFF:
            scores.append(logits.detach().sigmoid().cpu().numpy())
            truths.append(target.cpu().numpy())
            guess, truth = np.concatenate(scores), np.concatenate(truths)
            auc, precision = roc_auc_score(truth, guess), average_precision_score(truth, guess)
    accelerator.print(epoch, loss.item())
