"""Traps that were kept apart: another program, and edits on which no rule and no threshold was set.

They were first run when all was done: the answers were right for all 12. In two, the edit had no effect where one was expected: `foreach`
updates are the same bits, and gradients never reached the norm of the clipping, which is smaller now.
"""

from __future__ import annotations

from tests.compare.traps import Trap

BEFORE = """
import math
import torch
from torch.nn import functional as F

torch.manual_seed(1337)
text = torch.randint(0, 40, (4000,))
train, valid = text[:3600], text[3600:]
BATCH, BLOCK = 8, 12

def get_batch(data, generator=None):
    places = torch.randint(len(data) - BLOCK - 1, (BATCH,), generator=generator)
    return torch.stack([data[i : i + BLOCK] for i in places]), torch.stack([data[i + 1 : i + BLOCK + 1] for i in places])

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
        return x + self.drop(self.out(mixed))

class Model(torch.nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.embed = torch.nn.Embedding(40, width)
        self.place = torch.nn.Embedding(BLOCK, width)
        self.blocks = torch.nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = torch.nn.Linear(width, 40, bias=False)

    def forward(self, x, y):
        hidden = self.blocks(self.embed(x) + self.place(torch.arange(x.shape[1])))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
for step in range(80):
    if step % 20 == 0:
        model.eval()
        with torch.no_grad():
            fixed = torch.Generator().manual_seed(5)
            print("valid", sum(model(*get_batch(valid, fixed)).item() for _ in range(4)) / 4)
        model.train()
    for group in optimizer.param_groups:
        group["lr"] = 2e-3 * min(1.0, (step + 1) / 10)
    x, y = get_batch(train)
    loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
ATTENTION = """        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
"""
TRAPS = {
    "attention of torch": Trap({ATTENTION: "        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"}, "rounding"),
    "batches by index": Trap(
        {"return torch.stack([data[i : i + BLOCK] for i in places]), torch.stack([data[i + 1 : i + BLOCK + 1] for i in places])":
         "rows = places[:, None] + torch.arange(BLOCK)\n    return data[rows], data[rows + 1]"},
    ),
    "an update for each tensor": Trap({"betas=(0.9, 0.95)": "betas=(0.9, 0.95), foreach=True"}),
    "a mask that does not hide the future": Trap({".tril()": ".tril(1)"}, "changed", 4),
    "clipping at a smaller norm": Trap({"(model.parameters(), 1.0)": "(model.parameters(), 0.01)"}, "changed", 4),
    "warm-up of the learning rate removed": Trap({"min(1.0, (step + 1) / 10)": "1.0"}, "changed", 4),
    "tied weights": Trap({"model = Model()": "model = Model()\nmodel.head.weight = model.embed.weight"}, "changed", 4, {"parameters"}),
    "one batch again and again": Trap(
        {"    x, y = get_batch(train)\n": "    x, y = get_batch(train) if step == 0 else (x, y)\n"}, "changed", 4, {"samples", "repeats"}
    ),
    "validation text in the training text": Trap({"train, valid = text[:3600]": "train, valid = text"}, "changed", 4, {"samples"}),
    "fewer batches evaluated": Trap({"for _ in range(4)) / 4": "for _ in range(1))"}, "equal", 4, {"evaluation"}),
    "bfloat16 in the attention alone": Trap(
        {"chunk(3, -1)\n": "chunk(3, -1)\n        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()\n",
         "self.out(mixed)": "self.out(mixed.float())"}, "changed", 4,
    ),
    "loss of the last token alone": Trap(
        {"self.head(hidden).flatten(0, 1), y.flatten()": "self.head(hidden)[:, -1], y[:, -1]"}, "changed", 4
    ),
}  # fmt: skip
