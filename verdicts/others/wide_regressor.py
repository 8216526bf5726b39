import argparse
import time

import torch
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=4096)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--inputs", type=int, default=512)
    p.add_argument("--batch", type=int, default=8192)
    p.add_argument("--epochs", type=int, default=5000)
    return p.parse_args()


class Regressor(nn.Module):
    def __init__(self, inputs, width, depth):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.middle:
            x = x + torch.relu(layer(x))
        return self.last(x).squeeze(-1)


def main():
    args = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.randn(8 * args.batch, args.inputs, device=device)
    y = torch.sin(x[:, :8].sum(-1))
    model = Regressor(args.inputs, args.width, args.depth).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for epoch in range(args.epochs):
        tick = time.perf_counter()
        for xb, yb in zip(x.split(args.batch), y.split(args.batch)):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} mse {loss.item():.4f} ({time.perf_counter() - tick:.2f} s)")


if __name__ == "__main__":
    main()
