"""Single-image super-resolution: 32 x 32 to 64 x 64 with sub-pixel convolution."""

import copy
import glob

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class Upscaler(nn.Module):
    def __init__(self, ch=48, blocks=1):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(ch) for _ in range(blocks)])
        self.up = nn.Conv2d(ch, 12, 3, padding=1)

    def forward(self, x):
        return F.pixel_shuffle(self.up(self.body(self.stem(x))), 2)


@torch.no_grad()
def ema_update(target, source, decay=0.999):
    for t, s in zip(target.parameters(), source.parameters()):
        t.lerp_(s, 1 - decay)


def load_images():
    imgs = np.stack([np.load(p)["img"] for p in sorted(glob.glob("data/npz/*.npz"))])
    imgs = torch.from_numpy(imgs)
    return (imgs - imgs.mean()) / imgs.std()


def psnr(a, b):
    return -10 * torch.log10(F.mse_loss(a, b))


def main():
    torch.manual_seed(0)
    hr = load_images()
    lr = F.avg_pool2d(hr, 2)
    train_hr, val_hr = hr[:288], hr[288:]
    train_lr, val_lr = lr[:288], lr[288:]
    net = Upscaler()
    ema = copy.deepcopy(net)
    opt = torch.optim.Adam(net.parameters(), lr=4e-4)
    for epoch in range(500):
        for idx in torch.randperm(288).chunk(24):
            loss = F.l1_loss(net(train_lr[idx]), train_hr[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema_update(ema, net)
        with torch.no_grad():
            print(f"epoch {epoch}: l1 {loss.item():.4f} psnr {psnr(ema(val_lr), val_hr).item():.2f} dB")


if __name__ == "__main__":
    main()
