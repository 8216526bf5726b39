import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv1d(8, 16, 7, padding=3),
    nn.ReLU(),
    nn.Conv1d(16, 16, 7, padding=3),
    nn.ReLU(),
    nn.Conv1d(16, 16, 7, padding=3),
    nn.ReLU(),
    nn.Conv1d(16, 4, 7, padding=3),
)
opt = torch.optim.SGD(net.parameters(), 0.01)
X = torch.randn(640, 8, 512)
for it in range(20000):
    i = (it * 64) % 640
    opt.zero_grad()
    l = net(X[i : i + 64]).square().mean()
    l.backward()
    opt.step()
