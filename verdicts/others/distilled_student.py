import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax


def mlp(width):
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


torch.manual_seed(0)
teacher, student = mlp(1200), mlp(800)
teacher.requires_grad_(False).eval()
T, weight = 4.0, 0.7
bs = 256

X = torch.rand(40 * bs, 784)
Y = teacher(X).argmax(1)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for epoch in range(1000):
    for i in range(0, len(X), bs):
        x, y = X[i : i + bs], Y[i : i + bs]
        with torch.no_grad():
            soft = softmax(teacher(x) / T, dim=1)
        out = student(x)
        loss = weight * T**2 * kl_div(log_softmax(out / T, dim=1), soft, reduction="batchmean")
        loss = loss + (1 - weight) * cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} agreement {(out.argmax(1) == y).float().mean().item():.3f}")
