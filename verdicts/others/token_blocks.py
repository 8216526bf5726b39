# nanoGPT-like: get_batch() in the loop, no loader
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

block, bs = 64, 64


def get_batch(split):
    data = np.memmap("data/tokens.bin", dtype=np.uint16, mode="r")
    lo, hi = (0, 1_800_000) if split == "train" else (1_800_000, 2_000_000)
    xs, ys = [], []
    for _ in range(bs):
        i = int(torch.randint(lo, hi - block - 1, (1,)))
        seq = [int(t) for t in data[i : i + block + 1]]
        xs.append(torch.tensor(seq[:-1]))
        ys.append(torch.tensor(seq[1:]))
    return torch.stack(xs), torch.stack(ys)


class Tiny(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(512, 16)
        s.h = nn.Linear(16, 16)
        s.o = nn.Linear(16, 64)

    def forward(s, x):
        return s.o(torch.tanh(s.h(s.e(x))))


m = Tiny()
opt = torch.optim.AdamW(m.parameters(), lr=3e-4)
it = 0
while True:
    if it % 500 == 0:
        with torch.no_grad():
            x, y = get_batch("val")
            print(it, F.cross_entropy(m(x).view(-1, 64), y.view(-1) % 64).item())
    x, y = get_batch("train")
    loss = F.cross_entropy(m(x).view(-1, 64), y.view(-1) % 64)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    it += 1
    if it > 100000:
        break
