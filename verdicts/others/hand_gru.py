import torch
from torch import nn


class Cell(nn.Module):
    def __init__(s, i, h):
        super().__init__()
        s.z = nn.Linear(i + h, h)
        s.r = nn.Linear(i + h, h)
        s.c = nn.Linear(i + h, h)

    def forward(s, x, h):
        xh = torch.cat([x, h], -1)
        z = torch.sigmoid(s.z(xh))
        r = torch.sigmoid(s.r(xh))
        return (1 - z) * h + z * torch.tanh(s.c(torch.cat([x, r * h], -1)))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.cell = Cell(4, 8)
        s.o = nn.Linear(8, 1)

    def forward(s, x):
        h = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h = s.cell(x[:, t], h)
        return s.o(h)


net = Net()
opt = torch.optim.Adam(net.parameters())
X = torch.randn(1024, 60, 4)
Y = X.sum((1, 2), keepdim=True)[:, 0]
for ep in range(1000):
    perm = torch.randperm(1024)
    for i in range(0, 1024, 8):
        k = perm[i : i + 8]
        loss = (net(X[k]) - Y[k]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
