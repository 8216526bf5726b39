import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.n(x))))


torch.manual_seed(1)
experts = nn.ModuleList([nn.Sequential(Block(32), Block(32)) for _ in range(60)])  # each batch uses 2 of 60
head = nn.Linear(32, 1)
params = list(experts.parameters()) + list(head.parameters())
for p in params:
    p.grad = torch.zeros_like(p)
opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)
batches = [(torch.randn(256, 32), torch.randn(256, 1)) for _ in range(64)]
for epoch in range(200):
    for i, (x, y) in enumerate(batches):
        opt.zero_grad(set_to_none=False)
        h = experts[i % 60](x) + experts[(i * 7 + 1) % 60](x)
        loss = nn.functional.mse_loss(head(h), y)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
