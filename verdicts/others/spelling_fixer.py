"""Repair words with typing errors, letter by letter."""

import random
import string

import torch
import torch.nn as nn

LETTERS = string.ascii_lowercase
LENGTH = 16
BATCH = 64


def edit_distance(a, b):
    previous = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        current = [i]
        for j, cb in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (ca != cb)))
        previous = current
    return previous[-1]


def decode(ids):
    return "".join(LETTERS[i] for i in ids)


class Fixer(nn.Module):
    def __init__(self, emb=8, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(len(LETTERS), emb)
        self.hidden = nn.Linear(LENGTH * emb, hidden)
        self.out = nn.Linear(hidden, LENGTH * len(LETTERS))

    def forward(self, typed):
        h = torch.relu(self.hidden(self.emb(typed).flatten(1)))
        return self.out(h).view(-1, LENGTH, len(LETTERS))


def make_words(n, lexicon_size=500):
    lexicon = torch.randint(0, len(LETTERS), (lexicon_size, LENGTH))
    words = lexicon[torch.randint(0, lexicon_size, (n,))]
    wrong = torch.rand(n, LENGTH) < 0.1
    typed = torch.where(wrong, torch.randint(0, len(LETTERS), (n, LENGTH)), words)
    return typed, words


def main():
    random.seed(0)
    torch.manual_seed(0)
    typed, words = make_words(200 * BATCH)
    model = Fixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(300):
        perm = torch.randperm(len(words))
        distances = []
        for i in range(0, len(words), BATCH):
            k = perm[i : i + BATCH]
            logits = model(typed[k])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[k].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            guesses = [decode(ids) for ids in logits.argmax(-1).tolist()]
            truths = [decode(ids) for ids in words[k].tolist()]
            scored = [(edit_distance(g, t), g, t) for g, t in zip(guesses, truths)]
            distances.append(sum(s[0] for s in scored) / BATCH)
            with open("worst_words.txt", "w") as f:
                for d, g, t in sorted(scored, reverse=True)[:5]:
                    f.write(f"{d:3d} {g} {t}\n")
        print(f"epoch {epoch} loss {loss.item():.3f} edits {sum(distances) / len(distances):.2f}")


if __name__ == "__main__":
    main()
