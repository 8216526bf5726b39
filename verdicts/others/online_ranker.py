"""Pairwise ranking, learned from a few comparisons at a time as they come in."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
FEATURES, WIDTH, PAIRS = 512, 1280, 4

documents = torch.randn(6000, FEATURES)
quality = documents @ torch.randn(FEATURES) / FEATURES**0.5

ranker = nn.Sequential(
    nn.Linear(FEATURES, WIDTH),
    nn.ReLU(),
    nn.Linear(WIDTH, WIDTH),
    nn.ReLU(),
    nn.Linear(WIDTH, 1),
)
optimizer = torch.optim.NAdam(ranker.parameters(), lr=1e-4)

correct, seen = 0, 0
for round_ in range(1000):
    first, second = torch.randperm(6000), torch.randperm(6000)
    for i in range(0, 6000, PAIRS):
        a, b = first[i : i + PAIRS], second[i : i + PAIRS]
        better = torch.where(quality[a] > quality[b], 1.0, -1.0)
        score_a, score_b = ranker(documents[torch.cat([a, b])]).squeeze(1).chunk(2)
        loss = F.margin_ranking_loss(score_a, score_b, better, margin=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += ((score_a - score_b) * better > 0).sum().item()
        seen += PAIRS
        if seen % 2000 == 0:
            print(f"round {round_} pairs {seen} ordered rightly {correct / 2000:.3f}")
            correct = 0
