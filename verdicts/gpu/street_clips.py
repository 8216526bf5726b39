"""Recognize actions in video clips, half a second each."""

import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
GPU = torch.cuda.is_available()
device = torch.device("cuda", 0) if GPU else torch.device("cpu")
torch.manual_seed(42)
CLIPS, BATCH, SIDE = (320, 32, 112) if GPU else (16, 4, 32)
clips = torch.rand(CLIPS, 3, 16, SIDE, SIDE)
labels = torch.randint(0, 24, (CLIPS,))
if "transfer" in OFF:
    clips, labels = clips.to(device), labels.to(device)


def block(a, b, stride):
    return nn.Sequential(nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.BatchNorm3d(b), nn.ReLU(inplace=True))


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(3, 16, (1, 7, 7), (2, 4, 4), (0, 3, 3))
        self.stages = nn.Sequential(block(16, 32, 2), block(32, 64, 1), block(64, 64, 2), block(64, 128, 1))
        self.classes = nn.Linear(128, 24)

    def forward(self, x):
        return self.classes(self.stages(self.stem(x)).mean((2, 3, 4)))


model = Video().to(device)
if GPU:
    model = model.to(memory_format=torch.channels_last_3d)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
running = 0.0
for epoch in range(1_000_000):
    for start in range(0, CLIPS, BATCH):
        x, y = clips[start : start + BATCH].to(device), labels[start : start + BATCH].to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "sync" not in OFF:
            running = 0.95 * running + 0.05 * loss.item()
    print(epoch, round(running, 4))
