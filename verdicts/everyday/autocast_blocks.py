"""A small language model in bfloat16, with a few sequences per step."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
FIXED = "--fixed" in sys.argv


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm_2(x))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(256, 128), *[Block(128) for _ in range(8)], nn.Linear(128, 256)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
tokens = torch.randint(256, (4096, 65), device=device)
if FIXED and device == "cuda":
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        model = torch.cuda.make_graphed_callables(model, (tokens[:8, :-1].contiguous(),))
for step in range(50_000):
    rows = tokens[(step * 8) % 4096 : (step * 8) % 4096 + 8]
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        logits = model(rows[:, :-1].contiguous())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(step, loss.item())
