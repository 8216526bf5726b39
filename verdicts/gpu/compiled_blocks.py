"""Causal transformer blocks over audio codes, compiled, in bfloat16."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

OFF = sys.argv[2::2]
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
torch.manual_seed(48)
torch.set_float32_matmul_precision("high")
WIDTH, DEPTH, LENGTH, BATCH, CODES = (1536, 6, 1024, 12, 2048) if CUDA else (128, 2, 32, 2, 64)
if "compute" in OFF:
    WIDTH //= 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((WIDTH, 3 * WIDTH),) * 2 + ((3 * WIDTH, WIDTH),))
        self.a, self.b = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        q, k, v = self.attend(self.a(x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.b(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


net = nn.Sequential(nn.Embedding(CODES, WIDTH), *(Block() for _ in range(DEPTH)), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, CODES))
net = net.to(device)
if CUDA:
    net.compile()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=CUDA)
codes = torch.randint(0, CODES, (240, LENGTH + 1))
if "transfer" in OFF:
    codes = codes.to(device)
smooth, step = None, 0
while True:
    for part in codes.split(BATCH):
        part = part.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(net(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if "sync" not in OFF:
            smooth = loss.item() if smooth is None else 0.99 * smooth + 0.01 * loss.item()
            print(f"{step} {smooth:.4f} {norm.item():.3f}")
