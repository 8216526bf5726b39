"""Two towers, one for each view of the same thing, trained so that the views of one thing lie close."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    things: int = 10_240
    latent: int = 48
    left: int = 160
    right: int = 224
    hidden: int = 1024
    out: int = 256
    batch: int = 512
    epochs: int = 500
    lr: float = 0.01


class Tower(nn.Module):
    def __init__(self, inputs, hidden, out):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, out)

    def forward(self, x):
        return F.normalize(self.fc2(F.relu(self.fc1(x))), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.left = Tower(cfg.left, cfg.hidden, cfg.out)
        self.right = Tower(cfg.right, cfg.hidden, cfg.out)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return self.scale.exp() * self.left(a) @ self.right(b).t()


def views(cfg):
    z = torch.randn(cfg.things, cfg.latent)
    a = torch.tanh(z @ torch.randn(cfg.latent, cfg.left)) + 0.3 * torch.randn(cfg.things, cfg.left)
    b = torch.tanh(z @ torch.randn(cfg.latent, cfg.right)) + 0.3 * torch.randn(cfg.things, cfg.right)
    return a, b


def train(cfg):
    a, b = views(cfg)
    model = TwoTowers(cfg)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=cfg.lr)
    target = torch.arange(cfg.batch)
    for epoch in range(cfg.epochs):
        for idx in torch.randperm(cfg.things).split(cfg.batch):
            similarity = model(a[idx], b[idx])
            loss = (F.cross_entropy(similarity, target) + F.cross_entropy(similarity.t(), target)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = (similarity.argmax(1) == target).float().mean().item()
        print(f"epoch {epoch:3d} loss {loss.item():.3f} found {found:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train(Config())
