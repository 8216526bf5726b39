# closure style
import torch
from torch import nn

X = torch.randn(4000, 512)
Y = torch.randn(4000, 64)
net = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 64))
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for it in range(5000):
    i = (it * 400) % 4000

    def closure():
        opt.zero_grad()
        l = nn.functional.mse_loss(net(X[i : i + 400]), Y[i : i + 400])
        l.backward()
        return l

    l = opt.step(closure)
    if it % 50 == 0:
        print(it, l.item())
