import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ds = TensorDataset(torch.randn(640, 256), torch.randn(640, 256))
net = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
opt = torch.optim.SGD(net.parameters(), 0.01)


def run_epoch():
    total = 0.0
    for x, y in DataLoader(ds, batch_size=128, shuffle=True):
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / 5


for epoch in range(600):
    print(epoch, run_epoch())
