import argparse
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class GarchPaths(IterableDataset):
    """Simulated GARCH(1, 1) returns, with the two coefficients to recover from them."""

    def __init__(self, per_epoch, steps, seed):
        self.per_epoch = per_epoch
        self.steps = steps
        self.random = random.Random(seed)

    def simulate(self):
        alpha = self.random.uniform(0.02, 0.25)
        beta = self.random.uniform(0.4, 0.7)
        omega = 0.05
        variance = omega / (1 - alpha - beta)
        path = []
        for _ in range(self.steps):
            shock = math.sqrt(variance) * self.random.gauss(0.0, 1.0)
            path.append(shock)
            variance = omega + alpha * shock**2 + beta * variance
        return torch.tensor(path), torch.tensor([alpha, beta])

    def __iter__(self):
        for _ in range(self.per_epoch):
            yield self.simulate()


def build(steps):
    return nn.Sequential(nn.Linear(steps, 64), nn.Tanh(), nn.Linear(64, 2), nn.Sigmoid())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--per-epoch", type=int, default=12_800)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    train = DataLoader(GarchPaths(args.per_epoch, args.steps, seed=0), batch_size=args.batch_size)
    held_out = list(DataLoader(GarchPaths(512, args.steps, seed=1), batch_size=args.batch_size))
    model = build(args.steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for path, coefficients in train:
            loss = nn.functional.mse_loss(model(path.square()), coefficients)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = [(model(p.square()) - c).abs().mean().item() for p, c in held_out]
        print(f"epoch {epoch} mse {loss.item():.5f} held-out error {sum(errors) / len(errors):.4f}")


if __name__ == "__main__":
    main()
