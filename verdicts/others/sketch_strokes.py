# count the corners of a polygon drawn with a shaky hand
import math
import random

import torch
from torch import nn

SIZE = 32
BATCH = 24
STEPS = 200_000


def dot(canvas, x, y):
    i, j = int(y), int(x)
    for di in (0, 1):
        for dj in (0, 1):
            if 0 <= i + di < SIZE and 0 <= j + dj < SIZE:
                canvas[i + di][j + dj] = min(1.0, canvas[i + di][j + dj] + 0.6)


def stroke(canvas, a, b):
    n = int(max(abs(b[0] - a[0]), abs(b[1] - a[1]))) + 1
    for k in range(n + 1):
        t = k / n
        x = a[0] + t * (b[0] - a[0]) + random.gauss(0, 0.3)
        y = a[1] + t * (b[1] - a[1]) + random.gauss(0, 0.3)
        dot(canvas, x, y)


def draw(corners):
    canvas = [[0.0] * SIZE for _ in range(SIZE)]
    turn = random.uniform(0, 2 * math.pi)
    radius = random.uniform(10, 13)
    points = []
    for c in range(corners):
        angle = turn + 2 * math.pi * c / corners
        points.append((16 + radius * math.cos(angle), 16 + radius * math.sin(angle)))
    for c in range(corners):
        stroke(canvas, points[c], points[(c + 1) % corners])
    return canvas


def sketches():
    while True:
        labels = [random.randrange(4) for _ in range(BATCH)]
        images = [draw(label + 3) for label in labels]
        yield torch.tensor(images).unsqueeze(1), torch.tensor(labels)


net = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Conv2d(8, 12, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(12 * 8 * 8, 4),
)
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
right = 0
for step, (image, label) in zip(range(1, STEPS + 1), sketches()):
    logits = net(image)
    loss = nn.functional.cross_entropy(logits, label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    right += (logits.argmax(1) == label).sum().item()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f} acc {right / (100 * BATCH):.3f}")
        right = 0
