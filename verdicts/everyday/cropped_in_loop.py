"""Random crops and flips of each image, in the training loop."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
torch.manual_seed(0)


def crop(image):
    top, left = random.randint(0, 4), random.randint(0, 4)
    image = F.pad(image, (2, 2, 2, 2), mode="reflect")[:, top : top + 16, left : left + 16]
    if random.random() < 0.5:
        image = image.flip(-1)
    return (image - image.mean()) / (image.std() + 1e-5)


dataset = TensorDataset(torch.rand(2560, 3, 16, 16), torch.randint(0, 10, (2560,)))
loader = DataLoader(dataset, sampler=torch.utils.data.BatchSampler(range(2560), 64, False), batch_size=None)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, nesterov=True, momentum=0.9)
for epoch in range(10_000):
    net.train()
    for images, labels in loader:
        if "--fixed" not in sys.argv:
            images = torch.stack([crop(image) for image in images])
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
