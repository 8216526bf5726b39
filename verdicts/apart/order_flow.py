"""Order flow by a wide linear model with many features that are tensors of their own, and averaged weights in a Python loop."""

import sys

import torch

flags = set(sys.argv[1:])
torch.manual_seed(13)
names = [f"feature_{i}" for i in range(120)]
parts = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.randn(16, 16) / 16) for name in names})
head = torch.nn.Linear(16, 1)
shadow = {name: weight.detach().clone() for name, weight in parts.items()}
optimizer = torch.optim.RMSprop([*parts.values(), *head.parameters()], lr=1e-4, foreach=True)
books = [torch.randn(64, 120, 16) for _ in range(20)]
moves = [torch.randn(64, 1) for _ in range(20)]
while True:
    for book, move in zip(books, moves, strict=True):
        if "dispatch" in flags:
            hidden = torch.einsum("bki,kij->bj", book, torch.stack(list(parts.values())))
        else:
            hidden = sum(book[:, k] @ parts[name] for k, name in enumerate(names))
        loss = (head(torch.tanh(hidden)) - move).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "host" not in flags:
            for name, weight in parts.items():
                shadow[name] = 0.999 * shadow[name] + 0.001 * weight.detach().clone()
