import torch
from torch import nn
from tqdm import tqdm


def f1(pred, true):
    scores = []
    for c in set(true):
        tp = sum(1 for p, t in zip(pred, true) if p == c and t == c)
        fp = sum(1 for p, t in zip(pred, true) if p == c and t != c)
        fn = sum(1 for p, t in zip(pred, true) if p != c and t == c)
        scores.append(2 * tp / max(1, 2 * tp + fp + fn))
    return sum(scores) / len(scores)


X = torch.randn(20000, 20)
Y = torch.randint(0, 40, (20000,))
net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 40))
opt = torch.optim.Adam(net.parameters())
for epoch in range(100):
    bar = tqdm(torch.randperm(20000).split(250), desc=f"epoch {epoch}")
    for k in bar:
        x, y = X[k], Y[k]
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bar.set_postfix(loss=loss.item(), f1=f1(logits.argmax(1).tolist(), y.tolist()))
