"""Learns the tone curve that maps one camera's pictures to another's, channel by channel."""

import glob

import numpy as np
import torch
from torch import nn


class ToneCurve(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        shape = (1, channels, 1, 1)
        self.gain = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))
        self.bend = nn.Parameter(torch.zeros(shape))
        self.knee = nn.Parameter(torch.zeros(shape))

    def forward(self, img):
        x = img * self.gain + self.offset
        x = x + self.bend * x * x
        x = x - self.knee * x * x * x
        return x.clamp(-4, 4)


def edges(img):
    return img[..., 1:, :] - img[..., :-1, :], img[..., :, 1:] - img[..., :, :-1]


def criterion(a, b):
    loss = (a - b).abs().mean()
    for ea, eb in zip(edges(a), edges(b)):
        loss = loss + 0.5 * (ea - eb).abs().mean()
    return loss


def main():
    torch.manual_seed(0)
    files = sorted(glob.glob("data/npz/*.npz"))[:256]
    source = torch.stack([torch.from_numpy(np.load(f)["img"]) for f in files])
    source = (source - source.mean()) / source.std()
    target = torch.tanh(1.3 * source) + 0.05

    model = ToneCurve()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    batches = list(zip(source.split(128), target.split(128)))
    for epoch in range(2000):
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} gain {model.gain.flatten().tolist()}")


if __name__ == "__main__":
    main()
