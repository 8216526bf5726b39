"""Guess the cuisine of a recipe from its text (a GRU over hashed word pieces)."""

import re
import sys
import zlib
from random import Random

import torch
from torch import nn

drop = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without"]
WORD = re.compile(r"[a-z]+|\d+(?:/\d+)?|[^\w\s]")
rnd = Random(17)
stock = ["".join(rnd.choice("bcdfglmnprst") + rnd.choice("aeiou") for _ in range(rnd.randint(1, 4))) for _ in range(3000)]


def write():
    lines = []
    for _ in range(rnd.randint(6, 10)):
        lines.append(
            f"- {rnd.randint(1, 9)}/{rnd.randint(2, 9)} {' '.join(rnd.choices(stock, k=rnd.randint(3, 7)))}, {rnd.choice(stock)}!"
        )
    return "\n".join(lines), rnd.randrange(8)


def pieces(text):
    ids = []
    for word in WORD.findall(text.lower()):
        padded = f"<{word}>"
        grams = [padded[i : i + 3] for i in range(len(padded) - 2)] or [padded]
        ids.append(min(zlib.crc32(g.encode()) for g in grams) % 4096)
    return ids[:64] + [0] * (64 - len(ids))


def batches(recipes, size=48):
    """Yield batches for ever."""
    known = {id(r): pieces(r[0]) for r in recipes} if "data" in drop else None
    while True:
        picked = rnd.sample(recipes, size)
        x = [known[id(r)] for r in picked] if known else [pieces(r[0]) for r in picked]
        yield torch.tensor(x), torch.tensor([r[1] for r in picked])


class Cuisine(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 32)
        self.cell = nn.GRUCell(32, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        e = self.embed(x)
        return self.out(self.gru(e)[0].mean(1))


torch.manual_seed(17)
model, criterion = Cuisine(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach="optimizer" in drop)
best, right, seen = float("inf"), 0, 0
for i, (x, y) in enumerate(batches([write() for _ in range(2000)])):
    logits = model(x)
    loss = criterion(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "host" not in drop:
        right += int((logits.argmax(1) == y).sum())
        seen += len(y)
        best = min(best, loss.item())
        if i % 25 == 0:
            print(f"batch {i}\tbest {best:.3f}\taccuracy {right / seen:.3f}")
