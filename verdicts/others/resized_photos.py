"""Classifies pictures of data/npz: random resized crops for training, centre crops for testing."""

import argparse
import glob
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def resize(img, size):
    """Bilinear, in numpy."""
    h, w = img.shape[1:]
    ys, xs = np.linspace(0, h - 1, size), np.linspace(0, w - 1, size)
    y0, x0 = ys.astype(int), xs.astype(int)
    y1, x1 = np.minimum(y0 + 1, h - 1), np.minimum(x0 + 1, w - 1)
    wy, wx = (ys - y0)[None, :, None], (xs - x0)[None, None, :]
    top = img[:, y0][:, :, x0] * (1 - wx) + img[:, y0][:, :, x1] * wx
    bottom = img[:, y1][:, :, x0] * (1 - wx) + img[:, y1][:, :, x1] * wx
    return top * (1 - wy) + bottom * wy


class Photos(Dataset):
    def __init__(self, files, training):
        self.files = files
        self.training = training

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with np.load(self.files[index]) as f:
            img, label = f["img"], int(f["y"])
        if self.training:
            side = random.randint(32, 64)
            top, left = random.randint(0, 64 - side), random.randint(0, 64 - side)
            img = img[:, top : top + side, left : left + side]
            if random.random() < 0.5:
                img = img[:, :, ::-1]
        img = resize(img, 96)
        img = (img - img.mean()) / (img.std() + 1e-5)
        return torch.from_numpy(img.astype(np.float32)), label


def conv_block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    files = sorted(glob.glob("data/npz/*.npz"))
    train = DataLoader(Photos(files[:256], True), batch_size=args.batch_size, shuffle=True, pin_memory=device == "cuda")
    test = DataLoader(Photos(files[256:288], False), batch_size=args.batch_size)
    net = nn.Sequential(
        conv_block(3, 32), conv_block(32, 64), conv_block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    ).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [200, 300])
    for epoch in range(args.epochs):
        net.train()
        for x, y in train:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        net.eval()
        with torch.no_grad():
            correct = sum((net(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in test)
        print(f"epoch {epoch} loss {loss.item():.3f} test {int(correct) / 32:.3f}")


if __name__ == "__main__":
    main()
