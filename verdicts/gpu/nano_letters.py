"""Train a GPT on letters; after nanoGPT."""

import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
batch_size, block_size, n_layer, n_head, n_embd, vocab = 12, 128, 10, 4, 192, 65
torch.manual_seed(1337)
text = np.random.default_rng(1337).integers(0, vocab, 2_000_000).astype(np.uint16)
text.tofile("train.bin")
on_device = torch.from_numpy(text.astype(np.int64)).to(device)


def get_batch():
    ix = torch.randint(len(text) - block_size, (batch_size,))
    if "data" in OFF:
        rows = ix.to(device)[:, None] + torch.arange(block_size + 1, device=device)
        rows = on_device[rows]
        return rows[:, :-1], rows[:, 1:]
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd, bias=False), nn.LayerNorm(n_embd, bias=False)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd, bias=False), nn.Linear(n_embd, n_embd, bias=False)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, x, y):
        x = self.wte(x) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), y.flatten())


model = GPT().to(device)
ctx = torch.autocast(device, torch.bfloat16, cache_enabled=False) if device == "cuda" else nullcontext()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=device == "cuda")


def forward_backward(x, y):
    with ctx:
        loss = model(x, y)
    loss.backward()
    return loss


run, (X, Y) = forward_backward, get_batch()
if "launch" in OFF and device == "cuda":
    static_x, static_y = X.clone(), Y.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            forward_backward(static_x, static_y)
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_loss = forward_backward(static_x, static_y)

    def run(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
        return static_loss


t0, iter_num = time.time(), 0
while True:
    loss = run(X, Y)
    X, Y = get_batch()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if "launch" not in OFF:
        optimizer.zero_grad(set_to_none=True)
    if "sync" not in OFF or iter_num % 100 == 0:
        dt, t0 = time.time() - t0, time.time()
        print(f"iter {iter_num}: loss {loss.item():.4f}, norm {norm.item():.3f}, time {dt * 1000:.2f}ms")
    iter_num += 1
