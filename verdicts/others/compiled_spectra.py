import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class W(Dataset):
    def __init__(self):
        self.s = np.load("data/series.npy")

    def __len__(self):
        return 8192

    def __getitem__(self, i):
        w = self.s[i * 40 : i * 40 + 256]
        w = (w - w.mean()) / (w.std() + 1e-6)
        f = np.abs(np.fft.rfft(w))
        q = np.quantile(w, [0.1, 0.5, 0.9])
        h, _ = np.histogram(w, 16)
        return np.concatenate([f, q, h]).astype("float32"), np.float32(w[-1])


net = nn.Sequential(nn.Linear(148, 64), nn.SiLU(), nn.Linear(64, 1))
step_net = torch.compile(net)
opt = torch.optim.Adam(net.parameters())
for ep in range(100):
    for x, y in DataLoader(W(), batch_size=64, shuffle=True):
        loss = (step_net(x).squeeze(-1) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(ep, loss.item())
