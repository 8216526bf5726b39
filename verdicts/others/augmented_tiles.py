import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(7)


def random_crop(img, size=48):
    top, left = rng.integers(0, img.shape[1] - size, 2)
    return img[:, top : top + size, left : left + size]


def random_rotate(img, degrees=15):
    # nearest-neighbour rotation around the centre
    a = np.deg2rad(rng.uniform(-degrees, degrees))
    n = img.shape[1]
    yy, xx = np.meshgrid(np.arange(n) - n / 2, np.arange(n) - n / 2, indexing="ij")
    src_y = np.clip(np.cos(a) * yy - np.sin(a) * xx + n / 2, 0, n - 1).astype(int)
    src_x = np.clip(np.sin(a) * yy + np.cos(a) * xx + n / 2, 0, n - 1).astype(int)
    return img[:, src_y, src_x]


def colour_jitter(img):
    gain = rng.normal(1.0, 0.1, (3, 1, 1))
    shift = rng.normal(0.0, 0.1, (3, 1, 1))
    return img * gain + shift + rng.normal(0, 0.02, img.shape)


class Tiles(Dataset):
    def __init__(self, ids, train):
        self.train = train
        self.imgs, self.labels = [], []
        for i in ids:
            with np.load(os.path.join("data", "npz", f"{i}.npz")) as z:
                self.imgs.append(z["img"])
                self.labels.append(int(z["y"]))
        self.mean = np.mean(self.imgs)
        self.std = np.std(self.imgs)

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        img = (self.imgs[i] - self.mean) / self.std
        if self.train:
            img = random_rotate(img)
            img = random_crop(img)
            if rng.random() < 0.5:
                img = img[:, :, ::-1]
            img = colour_jitter(img)
        else:
            img = img[:, 8:56, 8:56]
        return torch.from_numpy(np.ascontiguousarray(img, dtype=np.float32)), self.labels[i]


train_loader = DataLoader(Tiles(range(256), train=True), batch_size=16, shuffle=True)
test_loader = DataLoader(Tiles(range(268, 300), train=False), batch_size=16)

model = nn.Sequential(
    nn.Conv2d(3, 8, 5, stride=4, padding=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)

for epoch in range(300):
    model.train()
    running = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    scheduler.step()

    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (model(images).argmax(1) == labels).sum().item()
    if epoch % 10 == 0:
        print(f"[{epoch}] loss={running / len(train_loader):.3f} acc={correct / 32:.3f}")
