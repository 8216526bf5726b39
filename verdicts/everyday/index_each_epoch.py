"""Sentence pairs are grouped by length again before each epoch."""

import itertools
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

draw = random.Random(0)
SENTENCES = [[draw.randrange(500) for _ in range(draw.randint(8, 40))] for _ in range(3000)]
TENSORS = [torch.tensor(sentence) for sentence in SENTENCES]
GROUPS = None


def group(sentences):
    """Batches of sentences of about the same length, after a count of what their neighbours share."""
    order = sorted(range(len(sentences)), key=lambda i: (len(sentences[i]), draw.random()))
    shared = []
    for a, b in itertools.pairwise(order):
        shared.append(len(set(sentences[a]) & set(sentences[b])))
    for _ in range(30):  # smooth the counts
        shared = [(left + right) // 2 for left, right in zip(shared, shared[1:] + shared[:1])]
    batches = [order[i : i + 100] for i in range(0, len(order), 100)]
    draw.shuffle(batches)
    return batches


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(500, 64)
        self.out = nn.Linear(64, 500)

    def forward(self, words, offsets):
        return self.out(self.embed(words, offsets))


def collate(rows):
    lengths = torch.tensor([len(row) for row in rows])
    return torch.cat(rows), lengths.cumsum(0) - lengths, torch.stack([row[0] for row in rows])


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2000):
    if GROUPS is None or "--fixed" not in sys.argv:
        GROUPS = group(SENTENCES)
    for words, offsets, first in DataLoader(TENSORS, batch_sampler=GROUPS, collate_fn=collate):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words, offsets), first)
        loss.backward()
        optimizer.step()
    if epoch % 20 == 0:
        print(epoch, loss.item())
