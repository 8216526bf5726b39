import argparse
import collections

import numpy as np
import torch
import torch.nn as nn


def auc(scores, labels):
    """Area under the ROC curve, by ranks."""
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    rank_sum, positives = 0.0, 0
    for rank, i in enumerate(order, start=1):
        if labels[i] > 0.5:
            rank_sum += rank
            positives += 1
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return 0.5
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


class Meter:
    def __init__(self, size):
        self.scores = collections.deque(maxlen=size)
        self.labels = collections.deque(maxlen=size)

    def update(self, scores, labels):
        self.scores.extend(scores.tolist())
        self.labels.extend(labels.tolist())

    def compute(self):
        s, l = list(self.scores), list(self.labels)
        return auc(s, l), sum(s) / len(s), sum((a > 0.5) == (b > 0.5) for a, b in zip(s, l)) / len(l)


def get_data():
    dt = np.dtype([("x", "<f4", 16), ("y", "<u4")])
    recs = np.fromfile("data/records.bin", dt)
    return torch.tensor(recs["x"]), torch.tensor(recs["y"] == 2, dtype=torch.float32)


def main(cfg):
    X, y = get_data()
    model = nn.Sequential(nn.Linear(16, 256), nn.SiLU(), nn.Linear(256, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 500))
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    meter = Meter(cfg.window)
    for epoch in range(cfg.epochs):
        perm = torch.randperm(len(X))
        for it in range(len(X) // cfg.bs):
            sel = perm[it * cfg.bs : (it + 1) * cfg.bs]
            logits = model(X[sel]).squeeze(1)
            loss = criterion(logits, y[sel])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            meter.update(logits.detach().sigmoid(), y[sel])
            area, mean, acc = meter.compute()
            if it % cfg.log_every == 0:
                print(f"{epoch}/{it} loss={loss.item():.4f} auc={area:.3f} mean={mean:.3f} acc={acc:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--bs", type=int, default=200)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--window", type=int, default=6000)
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--log_every", type=int, default=100)
    main(ap.parse_args())
