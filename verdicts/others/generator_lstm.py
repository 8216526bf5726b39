import random

import numpy as np
import torch

series = np.load("data/series.npy").tolist()
L, B = 48, 32


def windows():
    while True:
        xs, ys = [], []
        for _ in range(B):
            s = random.randrange(len(series) - L - 1)
            w = series[s : s + L]
            m = sum(w) / L
            sd = (sum((v - m) ** 2 for v in w) / L) ** 0.5 + 1e-6
            feats = []
            for k, v in enumerate(w):
                past = w[max(0, k - 10) : k + 1]
                feats.append([(v - m) / sd, (max(past) - m) / sd, (min(past) - m) / sd, (sum(past) / len(past) - m) / sd])
            xs.append(feats)
            ys.append([(series[s + L] - m) / sd])
        yield torch.tensor(xs), torch.tensor(ys)


lstm = torch.nn.LSTM(4, 16, batch_first=True)
head = torch.nn.Linear(16, 1)
opt = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-3)
running = 0.0
for step, (x, y) in enumerate(windows()):
    out, _ = lstm(x)
    loss = ((head(out[:, -1]) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    running = 0.98 * running + 0.02 * loss.item()
    if step % 100 == 0:
        print(step, running)
    if step == 20000:
        break
