"""A transformer over gridded weather fields, trained on one device with Accelerate."""

import argparse
import logging
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("weather")
CUDA = torch.cuda.is_available()


class Fields(Dataset):
    """Temperature, pressure, wind and humidity on a grid of 64 by 128, and the same six hours later."""

    def __init__(self, days=192, variables=12):
        self.fields = torch.randn(days, variables, 64, 128)

    def __len__(self):
        return len(self.fields) - 1

    def __getitem__(self, day):
        return self.fields[day], self.fields[day + 1]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Forecast(nn.Module):
    def __init__(self, variables=12, width=768 if CUDA else 96, depth=8, patch=4):
        super().__init__()
        self.enter = nn.Conv2d(variables, width, patch, patch)
        self.place = nn.Parameter(torch.randn(1, 64 * 128 // patch**2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(depth))
        self.leave = nn.ConvTranspose2d(width, variables, patch, patch)

    def forward(self, x):
        h = self.enter(x)
        shape = h.shape[2:]
        h = h.flatten(2).mT + self.place
        for block in self.blocks:
            h = block(h)
        return x + self.leave(h.mT.unflatten(2, shape))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", action="append", default=[], choices=["precision", "sync", "optimizer", "data"])
    parser.add_argument("--batch", type=int, default=8 if CUDA else 1)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    set_seed(7)
    if "precision" in args.without:
        torch.set_float32_matmul_precision("high")
    accelerator = Accelerator()
    model, dataset = Forecast(), Fields()
    if "data" in args.without:
        dataset = [
            tuple(torch.stack(side) for side in zip(*(dataset[d + k] for k in range(args.batch))))
            for d in range(0, 160, args.batch)
        ]
    loader = DataLoader(dataset, batch_size=None if "data" in args.without else args.batch, shuffle=True, pin_memory=CUDA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True if "optimizer" in args.without else None)
    weights = torch.cos(torch.linspace(-math.pi / 2, math.pi / 2, 66)[1:-1])[:, None].to(accelerator.device)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(10_000):
        for now, later in loader:
            loss = ((model(now) - later).square() * weights).mean()
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if "sync" not in args.without:
                if not math.isfinite(loss.item()):
                    raise FloatingPointError(f"loss of step {step}")
                if step % 50 == 0:
                    log.info("epoch %d step %d loss %.4f norm %.3f", epoch, step, loss.item(), norm.item())


if __name__ == "__main__":
    main()
