import torch
from torch import nn

torch.set_num_threads(16)
net = nn.Sequential(
    nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 10)
)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
X = torch.randn(50000, 256)
Y = torch.randint(0, 10, (50000,))
for ep in range(100):
    for i in range(0, 50000, 500):
        loss = nn.functional.cross_entropy(net(X[i : i + 500]), Y[i : i + 500])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(ep, loss.item())
