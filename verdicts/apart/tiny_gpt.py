"""
A tiny GPT in one file. Characters in, characters out; heads are written out as in the lecture.
    python tiny_gpt.py
"""

import math
import sys
import time

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
device = "cuda" if torch.cuda.is_available() else "cpu"
batch_size, block_size = (16, 128) if device == "cuda" else (4, 32)
gradient_accumulation_steps = 4
n_layer, n_head, n_embd, vocab_size = 6, 6, 192, 96
learning_rate, warmup_iters, grad_clip = 1e-3, 100, 1.0
without = [v for k, v in zip(sys.argv, sys.argv[1:]) if k == "--without"]
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
data = np.random.default_rng(1337).integers(0, vocab_size, 1_000_000).astype(np.uint16)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


if "data" in without:
    ready = [get_batch() for _ in range(64)]
    get_batch = lambda: ready[np.random.randint(64)]


class Head(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril == 0, float("-inf"))
        return F.dropout(F.softmax(wei, dim=-1), 0.1, self.training) @ v


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class FusedHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd, bias=False), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (n_head, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = FusedHeads() if "launch" in without else MultiHead()
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


wte, wpe = nn.Embedding(vocab_size, n_embd), nn.Parameter(torch.zeros(block_size, n_embd))
model = nn.Sequential(wte, *[Block() for _ in range(n_layer)], nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused="launch" in without)
X, Y = get_batch()
iter_num, lossi, t0 = 0, [], time.time()
while True:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1, (iter_num + 1) / warmup_iters) * (0.55 + 0.45 * math.cos(iter_num / 1e4))
    lossf = 0.0
    for _ in range(gradient_accumulation_steps):
        with torch.autocast(device, torch.bfloat16):
            logits = model(X)
            loss = F.cross_entropy(logits.view(-1, vocab_size), Y.view(-1)) / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
        if "sync" not in without:
            lossf += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if "sync" not in without:
        lossi.append(math.log10(max(lossf, 1e-9)))
        print(f"\riter {iter_num}: loss {lossf:.4f}, norm {norm.item():.3f}, {1e3 * (time.time() - t0):.1f}ms", end="")
    t0 = time.time()
    iter_num += 1
