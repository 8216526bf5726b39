# word2vec (skip-gram, negative sampling) on the token file
import random
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WINDOW = 4
NEGATIVES = 6
BATCH = 512
DIM = 24

corpus = np.fromfile("data/tokens.bin", dtype=np.uint16)[:500_000].tolist()
counts = Counter(corpus)
vocab_size = 512
ids = sorted(counts)
weights = [counts[t] ** 0.75 for t in ids]


def pairs():
    while True:
        pos = random.randrange(WINDOW, len(corpus) - WINDOW)
        centre = corpus[pos]
        for off in range(-WINDOW, WINDOW + 1):
            if off != 0:
                yield centre, corpus[pos + off]


def batches(n):
    stream = pairs()
    for _ in range(n):
        centres, contexts, negatives = [], [], []
        while len(centres) < BATCH:
            c, o = next(stream)
            centres.append(c)
            contexts.append(o)
            negatives.append(random.choices(ids, weights=weights, k=NEGATIVES))
        yield torch.tensor(centres), torch.tensor(contexts), torch.tensor(negatives)


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Embedding(vocab_size, DIM)
        self.out = nn.Embedding(vocab_size, DIM)
        nn.init.uniform_(self.inp.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.out.weight)

    def forward(self, c, o, neg):
        v = self.inp(c)
        good = (v * self.out(o)).sum(-1)
        bad = torch.bmm(self.out(neg), v.unsqueeze(-1)).squeeze(-1)
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


random.seed(3)
torch.manual_seed(3)
net = SkipGram()
optim = torch.optim.SGD(net.parameters(), lr=0.5)
sched = torch.optim.lr_scheduler.LinearLR(optim, 1.0, 0.1, total_iters=50)
for epoch in range(50):
    total = 0.0
    for c, o, neg in batches(400):
        optim.zero_grad()
        loss = net(c, o, neg)
        loss.backward()
        optim.step()
        total += loss.item()
    sched.step()
    print("epoch", epoch, "loss", round(total / 400, 4))
    torch.save(net.inp.weight.detach(), "vectors.pt")
