"""Train an autoencoder; every 25 steps its losses go to a tracking server."""

import sys
import threading
import time

import torch
from torch import nn

FIXED = "--fixed" in sys.argv


def upload(losses):
    time.sleep(4.0)  # the server's answer
    losses.clear()


net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 256))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
data = torch.randn(8192, 256)
losses = []
for step in range(1, 100_000):
    x = data[torch.randint(len(data), (128,))]
    loss = nn.functional.mse_loss(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if step % 25 == 0:
        if FIXED:
            threading.Thread(target=upload, args=(losses[:],), daemon=True).start()
            losses.clear()
        else:
            upload(losses)
