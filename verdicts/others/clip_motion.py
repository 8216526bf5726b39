# in which of eight directions does the blob move?
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FRAMES, SIZE = 8, 48
ACCUMULATE = 2


class Clips(Dataset):
    def __init__(self, n):
        self.label = torch.randint(0, 8, (n,))
        angle = self.label * math.pi / 4
        start = 16 + 16 * torch.rand(n, 2)
        t = torch.arange(float(FRAMES))
        grid = torch.arange(float(SIZE))
        cy = start[:, :1] + 2 * torch.sin(angle)[:, None] * t
        cx = start[:, 1:] + 2 * torch.cos(angle)[:, None] * t
        gy = torch.exp(-((grid - cy[..., None]) ** 2) / 18)
        gx = torch.exp(-((grid - cx[..., None]) ** 2) / 18)
        self.clip = (gy[..., :, None] * gx[..., None, :]).unsqueeze(1)
        self.clip += 0.1 * torch.randn_like(self.clip)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.clip[i], self.label[i]


class MotionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(1, 16, 3, stride=(1, 2, 2), padding=1)
        self.conv1 = nn.Conv3d(16, 32, 3, padding=1)
        self.conv2 = nn.Conv3d(32, 48, 3, stride=2, padding=1)
        self.head = nn.Linear(48, 8)

    def forward(self, x):
        x = self.stem(x).relu()
        x = self.conv1(x).relu()
        x = self.conv2(x).relu()
        return self.head(x.mean(dim=(2, 3, 4)))


torch.manual_seed(0)
loader = DataLoader(Clips(640), batch_size=2, shuffle=True)
net = MotionNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(300):
    losses = []
    for i, (clip, label) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(net(clip), label)
        (loss / ACCUMULATE).backward()
        losses.append(loss.item())
        if i % ACCUMULATE == 0:
            opt.step()
            opt.zero_grad()
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
