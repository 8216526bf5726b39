import hashlib
import json
import random
import re
from itertools import pairwise

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset

BUCKETS = 4096


def bucket(token):
    return int(hashlib.md5(token.encode()).hexdigest()[:8], 16) % BUCKETS


class ReviewStream(IterableDataset):
    """Bags of hashed unigrams and bigrams, read line by line with a shuffle buffer."""

    def __init__(self, path, buffer_size=256):
        self.path = path
        self.buffer_size = buffer_size

    def vectorize(self, line):
        row = json.loads(line)
        words = re.findall(r"\w+", row["text"].lower())
        vec = torch.zeros(BUCKETS)
        for w in words:
            vec[bucket(w)] += 1
        for a, b in pairwise(words):
            vec[bucket(a + "_" + b)] += 1
        return vec / vec.norm(), torch.tensor(row["label"])

    def __iter__(self):
        buf = []
        with open(self.path) as f:
            for line in f:
                buf.append(line)
                if len(buf) == self.buffer_size:
                    random.shuffle(buf)
                    yield from map(self.vectorize, buf)
                    buf = []


def accuracy(logits, labels):
    return (logits.argmax(-1) == labels).float().mean()


def run(epochs=100):
    clf = nn.Sequential(nn.Linear(BUCKETS, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
    opt = optim.Adagrad(clf.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(ReviewStream("data/text.jsonl"), batch_size=16, drop_last=True)
    for epoch in range(1, epochs + 1):
        for n, (bags, labels) in enumerate(loader):
            opt.zero_grad()
            logits = clf(bags)
            loss = criterion(logits, labels)
            loss.backward()
            opt.step()
            if n % 60 == 0:
                print(f"epoch {epoch} batch {n} loss {loss.item():.4f} acc {accuracy(logits, labels).item():.2f}")


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    run()
