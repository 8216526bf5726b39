# classifier of gaussian clusters; each step reports its accuracy with a confidence interval
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
CLASSES, DIM, BATCH = 8, 32, 256
centres = torch.randn(CLASSES, DIM)
labels = torch.randint(0, CLASSES, (40 * BATCH,))
points = centres[labels] + 1.5 * torch.randn(len(labels), DIM)

rng = np.random.default_rng(0)


def interval(correct, resamples=400):
    means = []
    for _ in range(resamples):
        means.append(correct[rng.integers(0, len(correct), len(correct))].mean())
    return np.quantile(means, [0.025, 0.975])


def recalls(predicted, actual):
    return [float((predicted[actual == c] == c).mean()) if (actual == c).any() else 0.0 for c in range(CLASSES)]


model = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
history = []
for epoch in range(2000):
    for x, y in zip(points.split(BATCH), labels.split(BATCH)):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        predicted, actual = logits.detach().numpy().argmax(1), y.numpy()
        low, high = interval((predicted == actual).astype(np.float64))
        history.append((loss.item(), low, high, min(recalls(predicted, actual))))
    scheduler.step()
    mean = np.mean(history[-40:], axis=0)
    print(f"epoch {epoch} loss {mean[0]:.3f} accuracy in [{mean[1]:.3f}, {mean[2]:.3f}] worst recall {mean[3]:.3f}")
