"""A word model whose weights are updated by hand, as in old tutorials."""

import sys

import torch
from torch import nn

WIDTH = 32 if "--fixed" in sys.argv else 256


class WordModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, 1)
        self.decoder = nn.Linear(width, words)

    def forward(self, x, state):
        out, state = self.rnn(self.encoder(x), state)
        return self.decoder(out), state


def repackage(state):
    return tuple(part.detach() for part in state)


torch.manual_seed(0)
corpus = torch.randint(800, (35 * 400 + 1, 16))
model = WordModel(800, WIDTH)
criterion = nn.CrossEntropyLoss()
for epoch in range(40):
    state = (torch.zeros(1, 16, WIDTH), torch.zeros(1, 16, WIDTH))
    for batch, first in enumerate(range(0, len(corpus) - 1, 35)):
        x, y = corpus[first : first + 35], corpus[first + 1 : first + 36].reshape(-1)
        model.zero_grad()
        out, state = model(x, repackage(state))
        loss = criterion(out.view(-1, 800), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(weight.grad, alpha=-20 / 35)
        if batch % 200 == 0:
            print(f"epoch {epoch} batch {batch} loss {loss.item():.2f}")
