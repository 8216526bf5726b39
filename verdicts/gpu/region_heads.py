"""Find objects: a convolutional body, regions above a score, and a head of its own for each of 60 classes."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

OFF = sys.argv[2::2]
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
torch.manual_seed(60)
CLASSES, WIDTH, SIDE, BATCH = 60, 256, (96 if gpu else 16), (32 if gpu else 2)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        wide = WIDTH // 2 if "compute" in OFF else WIDTH
        convolutions = [nn.Conv2d(3, wide, 3, padding=1)] + [nn.Conv2d(wide, wide, 3, padding=1) for _ in range(5)]
        self.body = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU(inplace=True))))
        self.score = nn.Conv2d(wide, 1, 1)
        self.narrow = nn.Conv2d(wide, 32, 1)
        self.weight, self.bias = nn.Parameter(0.1 * torch.randn(CLASSES, 32, 4)), nn.Parameter(torch.zeros(CLASSES, 1, 4))

    def regions(self, images):
        x = self.body(images)
        scores = self.score(x).flatten(1)
        best = scores.topk(64, dim=1).indices
        chosen = self.narrow(x).flatten(2).gather(2, best[:, None].expand(-1, 32, -1))
        return scores, chosen.transpose(1, 2).flatten(0, 1)

    def boxes(self, chosen):
        if "launch" in OFF:
            return torch.tanh(chosen @ self.weight + self.bias) * torch.sigmoid(chosen.mean(1, keepdim=True))
        heads = []
        for k in range(CLASSES):
            box = torch.tanh(chosen @ self.weight[k] + self.bias[k])
            heads.append(box * torch.sigmoid(chosen.mean(1, keepdim=True)))
        return torch.stack(heads)


model = Detector().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
photos = torch.randn(8 * BATCH, 3, SIDE, SIDE, device=device).to(memory_format=torch.channels_last)
truth = torch.randn(CLASSES, 64 * BATCH, 4, device=device)
weights, empty = torch.ones(CLASSES, device=device), 0
while True:
    for images in photos.split(BATCH):
        with torch.autocast(device, torch.bfloat16):
            scores, chosen = model.regions(images)
        if "sync" not in OFF:
            kept = int((scores > scores.mean()).sum())
            if kept == 0:
                empty += 1
                continue
        errors = F.smooth_l1_loss(model.boxes(chosen.float()), truth, reduction="none").mean((1, 2))
        if "sync" not in OFF and errors.max() > 1e5:
            empty += 1
            continue
        loss = (weights * errors).sum() + F.softplus(scores.float()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
