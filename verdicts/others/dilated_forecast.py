# temporal convolutional network on the series
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    def __init__(self, array, length, step):
        self.x = torch.from_numpy(array)
        self.length, self.step = length, step

    def __len__(self):
        return (len(self.x) - self.length - 1) // self.step

    def __getitem__(self, i):
        a = i * self.step
        return self.x[a : a + self.length + 1]


class TCNBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(ch, ch, 3, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return x + self.mix(torch.relu(self.conv(self.pad(x))))


class TCN(nn.Module):
    def __init__(self, ch=96, dilations=(1, 4)):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 1)
        self.blocks = nn.Sequential(*(TCNBlock(ch, d) for d in dilations))
        self.out = nn.Conv1d(ch, 1, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x.unsqueeze(1)))).squeeze(1)


def normalise(batch):
    return (batch - batch[:, :1]) / (batch.std(1, keepdim=True) + 1e-4)


series = np.load("data/series.npy")
train_dl = DataLoader(Series(series[:380_000], 256, 64), batch_size=16, shuffle=True, drop_last=True)
valid_dl = DataLoader(Series(series[380_000:], 256, 256), batch_size=16, drop_last=True)
tcn = TCN()
optimizer = torch.optim.Adagrad(tcn.parameters(), lr=5e-3)
mse = nn.MSELoss()
for epoch in range(100):
    tcn.train()
    for i, batch in enumerate(train_dl):
        batch = normalise(batch)
        optimizer.zero_grad()
        loss = mse(tcn(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        if i % 50 == 0:
            print(f"epoch {epoch} it {i} mse {loss.item():.5f}")
    tcn.eval()
    with torch.no_grad():
        val = [mse(tcn(b[:, :-1]), b[:, 1:]).item() for b in map(normalise, valid_dl)]
    print(f"epoch {epoch} valid {np.mean(val):.5f}")
