import torch
from torch import nn

torch.manual_seed(0)
xs = [torch.randn(256, 1024) for _ in range(20)]
net = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(1000):
    for x in xs:
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
