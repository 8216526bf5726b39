"""Credit default from 60 columns, each of which is a tensor of its own in a dict."""

import sys
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(6)


class Schema(NamedTuple):
    numbers: list[str]
    codes: list[str]


schema = Schema([f"amount_{i}" for i in range(36)], [f"code_{i}" for i in range(24)])
clients, size = 50_000, 1024
table = {name: torch.randn(clients) for name in schema.numbers}
table |= {name: torch.randint(0, 50, (clients,)) for name in schema.codes}
table["target"] = (torch.rand(clients) < 0.1).float()
if "transfer" in OFF:
    table = {name: column.to(device) for name, column in table.items()}


class CreditNet(nn.Module):
    def __init__(self, width=256, depth=2):
        super().__init__()
        self.codes = nn.Embedding(24 * 50, 8)
        self.register_buffer("offsets", torch.arange(24) * 50)
        sizes = [36 + 24 * 8, *[width] * depth]
        self.body = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())))
        self.head = nn.Linear(width, 1)

    def forward(self, batch):
        numbers = torch.stack([batch[name] for name in schema.numbers], 1)
        codes = torch.stack([batch[name] for name in schema.codes], 1) + self.offsets
        return self.head(self.body(torch.cat([numbers, self.codes(codes).flatten(1)], 1)))[:, 0]


def main():
    model = CreditNet(depth=1 if "launch" in OFF else 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(9.0, device=device))
    step = 0
    while True:
        start = step * size % (clients - size)
        batch = {name: column[start : start + size].to(device) for name, column in table.items()}
        loss = criterion(model(batch), batch["target"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 10 == 0 and "sync" not in OFF:
            print(f"{step}: {loss.item():.4f}")


main()
