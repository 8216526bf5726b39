import os

import torch
from torch import nn

os.makedirs("ckpt", exist_ok=True)
net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
opt = torch.optim.Adam(net.parameters(), fused=True)
data = torch.randn(4096, 128)
for step in range(5000):
    idx = torch.randint(0, 4096, (64,))
    x = data[idx]
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "step": step}, "ckpt/tmp.pt")
    os.replace("ckpt/tmp.pt", "ckpt/last.pt")
