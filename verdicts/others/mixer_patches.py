from glob import glob

import numpy as np
import torch
from torch import nn

torch.set_num_threads(12)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.norm2 = nn.LayerNorm(dim)
        self.channels = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, patch=8, dim=64, depth=2, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.blocks = nn.Sequential(*[MixerBlock((64 // patch) ** 2, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


files = glob("data/npz/*.npz")
loaded = [np.load(f) for f in files]
images = torch.tensor(np.stack([z["img"] for z in loaded]))
images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
labels = torch.tensor([int(z["y"]) for z in loaded])

model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=30_000)
for epoch in range(3_000):
    for idx in torch.randperm(300).view(10, 30):
        loss = nn.functional.cross_entropy(model(images[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if epoch % 20 == 0:
        print(epoch, loss.item())
