"""Train a tagger while a thread keeps statistics of the texts it has seen."""

import collections
import itertools
import random
import sys
import threading

import torch
from torch import nn

WORDS = [f"w{i}" for i in range(3000)]
counts = collections.Counter()


def keep_counting():
    draw = random.Random(0)
    while True:
        text = [draw.choice(WORDS) for _ in range(200)]
        counts.update(itertools.pairwise(text))
        if len(counts) > 50_000:
            counts.clear()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))
        self.out = nn.Linear(32, 9)

    def forward(self, words):
        h = self.embed(words)
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.out(h)


if "--fixed" not in sys.argv:
    threading.Thread(target=keep_counting, daemon=True, name="statistics").start()
torch.set_num_threads(1)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
words, tags = torch.randint(len(WORDS), (4000, 24)), torch.randint(9, (4000, 24))
for step in range(100_000):
    rows = torch.randint(len(words), (16,))
    loss = nn.functional.cross_entropy(model(words[rows]).flatten(0, 1), tags[rows].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
