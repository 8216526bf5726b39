# 1-d, conv-free: norms and activations
import torch
from torch import nn


class N(nn.Module):
    def __init__(s):
        super().__init__()
        s.ln = nn.ModuleList([nn.LayerNorm(64) for _ in range(4)])
        s.o = nn.Linear(64, 1)

    def forward(s, x):
        for l in s.ln:
            x = x + nn.functional.dropout(nn.functional.leaky_relu(l(x)), 0.1)
        return s.o(x.mean(1))


net = N()
opt = torch.optim.Adam(net.parameters(), fused=True)
X = torch.randn(256, 512, 64)
Y = torch.randn(256, 1)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 32, shuffle=True)
for ep in range(500):
    for x, y in dl:
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(ep, loss.item())
