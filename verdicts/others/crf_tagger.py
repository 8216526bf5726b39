"""Sequence tagging with a linear-chain conditional random field."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SEQ, TAGS, VOCAB = 40, 5, 512


class CRF(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(n_tags))
        self.transitions = nn.Parameter(0.1 * torch.randn(n_tags, n_tags))

    def partition(self, emissions):
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.size(1)):
            scores = alpha.unsqueeze(2) + self.transitions
            alpha = torch.logsumexp(scores, dim=1) + emissions[:, t]
        return torch.logsumexp(alpha, dim=1)

    def score(self, emissions, tags):
        rows = torch.arange(tags.size(0))
        total = self.start[tags[:, 0]] + emissions[rows, 0, tags[:, 0]]
        for t in range(1, tags.size(1)):
            total = total + self.transitions[tags[:, t - 1], tags[:, t]] + emissions[rows, t, tags[:, t]]
        return total

    def forward(self, emissions, tags):
        return (self.partition(emissions) - self.score(emissions, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim)
        self.linear = nn.Linear(dim, TAGS)
        self.crf = CRF(TAGS)

    def forward(self, tokens, tags):
        return self.crf(self.linear(self.embedding(tokens)), tags)


def load():
    tokens = np.fromfile("data/tokens.bin", dtype=np.uint16)[: 16_000 * SEQ].astype(np.int64)
    tags = (tokens // 64 + np.roll(tokens, 1) // 128) % TAGS
    return TensorDataset(torch.from_numpy(tokens).view(-1, SEQ), torch.from_numpy(tags).view(-1, SEQ))


def main():
    torch.manual_seed(0)
    loader = DataLoader(load(), batch_size=16, shuffle=True, drop_last=True)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(100):
        for step, (tokens, tags) in enumerate(loader):
            loss = model(tokens, tags)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} nll {loss.item():.3f}")


if __name__ == "__main__":
    main()
