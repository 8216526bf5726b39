"""Two towers: vectors of users and of articles, trained on clicks."""

import sys

import torch
from torch import nn

USERS = 4_000 if "--fixed" in sys.argv else 400_000
ARTICLES = 2_000
torch.manual_seed(2)


class Towers(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.users = nn.EmbeddingBag(USERS, width, mode="sum")
        self.articles = nn.Embedding(ARTICLES, width)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users, articles):
        return (self.users(users) * self.articles(articles)).sum(dim=1) + self.bias


towers = Towers()
optimizer = torch.optim.RMSprop(towers.parameters(), lr=1e-3, momentum=0.9)
losses = torch.zeros(1000)
for i in range(1_000_000):
    users, articles = torch.randint(0, 4000, (256, 3)), torch.randint(0, ARTICLES, (256,))
    clicked = torch.rand(256).round()
    loss = nn.functional.binary_cross_entropy_with_logits(towers(users, articles), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[i % 1000] = loss.detach()
