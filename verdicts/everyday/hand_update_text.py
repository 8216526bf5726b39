"""A bag-of-words model updated by hand; each batch of texts is tokenised again."""

import random
import sys

import torch

draw = random.Random(0)
TEXTS = [" ".join(f"word{draw.randrange(2000)}" for _ in range(120)) for _ in range(3000)]
LABELS = torch.randint(0, 2, (3000,)).float()
weights = torch.zeros(2000, requires_grad=True)
bias = torch.zeros((), requires_grad=True)


def encode(text):
    bag = [0.0] * 2000
    for word in text.split():
        bag[int(word[4:])] += 1.0
    return bag


ENCODED = torch.tensor([encode(text) for text in TEXTS]) if "--fixed" in sys.argv else None


def batches():
    while True:
        rows = [draw.randrange(len(TEXTS)) for _ in range(32)]
        if ENCODED is not None:
            yield ENCODED[rows], LABELS[rows]
        else:
            yield torch.tensor([encode(TEXTS[row]) for row in rows]), LABELS[rows]


for step, (bags, labels) in enumerate(batches()):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(bags @ weights + bias, labels)
    loss.backward()
    with torch.no_grad():
        for parameter in (weights, bias):
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    if step % 500 == 0:
        print(step, loss.item())
    if step == 100_000:
        break
