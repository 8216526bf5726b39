import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Ds(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(128, 128, generator=g)
        return x @ x.T / 128, i % 5


if __name__ == "__main__":
    torch.set_num_threads(4)
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(128 * 128, 64),
        nn.LayerNorm(64),
        nn.ReLU(),
        *[m for _ in range(6) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())],
        nn.Linear(64, 5),
    )
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for ep in range(20):
        for x, y in DataLoader(Ds(), batch_size=16, num_workers=8, shuffle=True):
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
