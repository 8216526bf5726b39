# matrix factorisation by hand, one rating at a time, no nn.Module
import random

import torch

torch.manual_seed(0)
P = torch.randn(100, 6, requires_grad=True)
Q = torch.randn(80, 6, requires_grad=True)
opt = torch.optim.SGD([P, Q], lr=0.01)
ratings = [(random.randrange(100), random.randrange(80), random.random() * 5) for _ in range(20000)]
for epoch in range(50):
    random.shuffle(ratings)
    for s in range(0, len(ratings), 50):
        loss = torch.zeros(())
        for u, i, r in ratings[s : s + 50]:
            loss = loss + (P[u].dot(Q[i]) - r) ** 2
        loss = loss / 50
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
