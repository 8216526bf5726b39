"""A table of confusions on the console while the network trains."""

import sys

import torch

CLASSES = 24
EVERY = 400 if "--fixed" in sys.argv else 1
torch.manual_seed(0)
x = torch.randn(4000, 50)
y = torch.randint(0, CLASSES, (4000,))
net = torch.nn.Sequential(torch.nn.Linear(50, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
counts = torch.zeros(CLASSES, CLASSES)


def show(step):
    lines = [f"step {step:>8}"]
    for i in range(CLASSES):
        total = counts[i].sum()
        cells = [f"{100 * float(counts[i, j] / (total + 1)):5.1f}" for j in range(CLASSES)]
        lines.append(f"{i:>3} | " + " ".join(cells))
    print("\n".join(lines), flush=True)


step = 0
while True:
    for part in torch.randperm(4000).split(100):
        opt.zero_grad()
        scores = net(x[part])
        torch.nn.functional.cross_entropy(scores, y[part]).backward()
        opt.step()
        step += 1
        if step % EVERY == 0:
            counts.index_put_((y[part], scores.argmax(dim=1)), torch.ones(100), accumulate=True)
            show(step)
