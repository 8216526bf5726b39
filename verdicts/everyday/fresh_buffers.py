"""Learn a response curve of long signals; every operation makes a new large array."""

import sys

import torch

torch.manual_seed(0)
POINTS = 16_000 if "--fixed" in sys.argv else 4_000_000
gain, offset, bend = (torch.nn.Parameter(torch.tensor(value)) for value in (1.0, 0.0, 0.1))
optimizer = torch.optim.SGD([gain, offset, bend], lr=1e-3)
signal = torch.randn(2, POINTS)
wanted = torch.tanh(signal)
for step in range(20_000):
    x, y = signal[step % 2], wanted[step % 2]
    h = x * gain + offset
    h = h - bend * h * h * h
    loss = (h - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
