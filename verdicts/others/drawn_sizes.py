import math
import random

import torch

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
opt = torch.optim.SGD(net.parameters(), 0.01)
random.seed(1)
for i in range(100000):
    n = int(64 * math.exp(random.gauss(0, 1.4)))
    for _ in range(random.choice([1, 1, 2, 8, 20])):
        x = torch.randn(max(1, n), 256)
        loss = net(x).pow(2).mean()
        loss.backward()
    opt.step()
    opt.zero_grad()
