"""A layer of leaky integrators, trained on noisy signals."""

import sys

import torch
from torch import nn

STEPS, UNITS = 160, 12
torch.manual_seed(0)


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(UNITS))
        self.leak = nn.Parameter(torch.full((UNITS,), 0.9))
        self.read = nn.Linear(UNITS, 1)

    def forward(self, signal):
        if "--fixed" in sys.argv:
            age = torch.arange(STEPS - 1, -1, -1, dtype=torch.float32)
            kernel = self.leak.clamp(0.1, 0.99)[None] ** age[:, None]
            state = torch.einsum("btu,tu->bu", signal * self.gain, kernel)
        else:
            state = signal.new_zeros(len(signal), UNITS)
            leak = self.leak.clamp(0.1, 0.99)
            for t in range(STEPS):
                state = leak * state + self.gain * signal[:, t]
        return self.read(torch.tanh(state))


model = Leaky()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
signals = torch.randn(2048, STEPS, UNITS)
targets = signals[:, -20:].mean(dim=(1, 2))[:, None]
for step in range(10**6):
    pick = torch.randint(0, 2048, (16,))
    loss = (model(signals[pick]) - targets[pick]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
