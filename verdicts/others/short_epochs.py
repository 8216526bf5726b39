# short epochs: 8 batches
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    X = torch.randn(512, 32)
    Y = torch.randint(0, 3, (512,))
    loader = DataLoader(TensorDataset(X, Y), batch_size=64, shuffle=True, num_workers=2)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(2000):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
        if epoch % 10 == 0:
            print("epoch", epoch)
