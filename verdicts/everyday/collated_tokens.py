"""Classify reviews. The collate function turns strings into token ids."""

import random
import re
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
random.seed(1)
torch.manual_seed(1)
WORDS = ["".join(random.choices("abcdefghijklmnop", k=random.randint(2, 9))) for _ in range(3000)]
PATTERN = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]", re.IGNORECASE)
VOCABULARY = {word: i + 4 for i, word in enumerate(WORDS)}


def review():
    return " ".join(random.choice(WORDS).title() + random.choice(["", ",", ".", "!"]) for _ in range(random.randint(60, 120)))


texts = [(review(), random.randint(0, 1)) for _ in range(4000)]


def encode(text):
    ids = [2]
    for match in PATTERN.finditer(text.strip()):
        token = match.group(0).lower()
        ids.append(VOCABULARY.get(token, 1))
    return ids[:96]


def collate(samples):
    rows = [encode(text) for text, _ in samples]
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return ids, torch.tensor([label for _, label in samples])


if FIXED:
    encoded = torch.tensor([(encode(text) + [0] * 96)[:96] for text, _ in texts])
    labels = torch.tensor([label for _, label in texts])
    loader = [(encoded[i : i + 64], labels[i : i + 64]) for i in range(0, 3968, 64)]
else:
    loader = DataLoader(texts, batch_size=64, shuffle=True, drop_last=True, collate_fn=collate)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS) + 4, 32, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 2))

    def forward(self, ids):
        return self.mix(self.embed(ids).mean(dim=1))


def main(epochs=1000):
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _ in range(epochs):
        for ids, target in loader:
            loss = nn.functional.cross_entropy(model(ids), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
