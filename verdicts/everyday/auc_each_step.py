"""A classifier with the score of its last 8,000 predictions."""

import sys
from collections import deque

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
x, y = torch.randn(2048, 64), (torch.randn(2048, 1) > 0).float()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters())
scores, labels = deque([0.0] * 8000, maxlen=8000), deque([0, 1] * 4000, maxlen=8000)
while True:
    for a, b in loader:
        out = model(a)
        loss = binary_cross_entropy_with_logits(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not FIXED:
            scores.extend(out.detach().flatten().tolist())
            labels.extend(b.flatten().tolist())
            auc = roc_auc_score(np.array(labels), np.array(scores))
