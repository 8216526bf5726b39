"""Additive effects of many groups: each group has a small weight of its own, and all are joined for one product."""

import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(70)
GROUPS, FEATURES, BATCH = 500, 24, 512


class Effects(nn.Module):
    def __init__(self):
        super().__init__()
        self.groups = nn.ParameterList(nn.Parameter(0.05 * torch.randn(FEATURES, 4)) for _ in range(GROUPS))
        self.shared = nn.Sequential(nn.Linear(4, 64), nn.Softplus(), nn.Linear(64, 1))

    def forward(self, x, group):
        weight = torch.stack(list(self.groups))[group]
        return self.shared((x[:, None] @ weight)[:, 0])[:, 0]


model = Effects().to(device)
fast = {"fused": device == "cuda"} if "optimizer" in OFF else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fast)
x = torch.randn(20_000, FEATURES, device=device)
group, y = torch.randint(0, GROUPS, (20_000,), device=device), torch.randn(20_000, device=device)


def gradients(rows):
    loss = nn.functional.huber_loss(model(x[rows], group[rows]), y[rows])
    loss.backward()
    return loss


def recorded():
    rows = torch.arange(BATCH, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        gradients(rows)
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = gradients(rows)

    def play(chosen):
        rows.copy_(chosen)
        graph.replay()
        return loss

    return play


graphed = "launch" in OFF and device == "cuda"
play = recorded() if graphed else gradients
curve = []
while True:
    loss = play(torch.randint(0, 20_000, (BATCH,), device=device))
    optimizer.step()
    if not graphed:
        optimizer.zero_grad()
    if "sync" not in OFF:
        curve.append(loss.item())
