#!/usr/bin/env python
"""A word-level story model with Accelerate; training can be resumed from its folder."""

import argparse
import itertools
import tempfile

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, Dataset

ap = argparse.ArgumentParser()
ap.add_argument("--without", action="append", default=[])
ap.add_argument("--save-every", type=int, default=20)
ap.add_argument("--folder", default=None)
opt = ap.parse_args()
has_gpu = torch.cuda.is_available()
words, rows = (30_000, 48) if has_gpu else (4000, 8)
if "host" in opt.without:
    opt.save_every = 10_000


class Stories(Dataset):
    def __init__(self, span=65):
        self.words, self.span = torch.randint(words, (2_000_000,)), span
        self.blocks = self.words[: len(self.words) // (span * rows) * span * rows].view(-1, rows, span)

    def __len__(self):
        return len(self.blocks) if "data" in opt.without else len(self.words) // self.span

    def __getitem__(self, i):
        return self.blocks[i] if "data" in opt.without else self.words[i * self.span : (i + 1) * self.span].clone()


class StoryNet(nn.Module):
    def __init__(self, d=384 if has_gpu else 96):
        super().__init__()
        self.table = nn.Embedding(words, d)
        layer = nn.TransformerEncoderLayer(d, 6, 4 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

    def forward(self, x):
        return self.body(self.table(x), mask=self.mask, is_causal=True) @ self.table.weight.T


torch.manual_seed(77)
accelerator = Accelerator(mixed_precision="bf16" if has_gpu else "no", dataloader_config=DataLoaderConfiguration(non_blocking=True))
net = StoryNet()
adam = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.95))
batches = DataLoader(Stories(), batch_size=None if "data" in opt.without else rows, shuffle=True, pin_memory=has_gpu)
net, adam, batches = accelerator.prepare(net, adam, batches)
folder = opt.folder or tempfile.mkdtemp()
history, done = [], 0
for epoch in itertools.count():
    for tokens in batches:
        with accelerator.accumulate(net):
            scores = net(tokens[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            accelerator.backward(loss)
            adam.step()
            adam.zero_grad()
        done += 1
        if "sync" not in opt.without:
            history.append(loss.item())
            perplexity = torch.exp(loss.detach()).item()
            if perplexity != perplexity:
                break
        if done % opt.save_every == 0:
            accelerator.save_state(folder)
            accelerator.print(epoch, done, "saved")
