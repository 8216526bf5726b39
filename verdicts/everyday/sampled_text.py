"""A character model that shows what it writes every 20 steps."""

import sys

import torch
from torch import nn

EVERY = 10_000 if "--fixed" in sys.argv else 20
torch.manual_seed(7)


class Characters(nn.Module):
    def __init__(self, symbols=60, width=64):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, symbols)

    def forward(self, ids, state=None):
        hidden, state = self.rnn(self.embed(ids), state)
        return self.out(hidden), state

    @torch.no_grad()
    def write(self, length):
        ids, state, text = torch.zeros(1, 1, dtype=torch.long), None, []
        for _ in range(length):
            logits, state = self(ids, state)
            ids = torch.multinomial(logits[:, -1].softmax(dim=-1), 1)
            text.append(chr(40 + int(ids)))
        return "".join(text)


class Run:
    def __init__(self):
        self.model = Characters()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.text = torch.randint(0, 60, (200_000,))
        self.written = []

    def batch(self):
        starts = torch.randint(0, len(self.text) - 33, (16,)).tolist()
        rows = torch.stack([self.text[start : start + 33] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def train(self, steps):
        for step in range(1, steps):
            inputs, targets = self.batch()
            logits, _ = self.model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % EVERY == 0:
                self.written = [*self.written[-3:], self.model.write(1200)]


Run().train(10_000_000)
