"""Learn to remove noise from small images with Accelerate; an average of the weights follows."""

import copy
import sys

import torch
from accelerate import Accelerator
from torch import nn
from tqdm import tqdm

OFF = sys.argv[2::2]
torch.manual_seed(17)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.time = nn.Linear(64, width)
        self.second = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x, t):
        return x + self.second(self.first(x) + self.time(t)[:, :, None, None])


class UNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        depth = 1 if "launch" in OFF else 4
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(Residual(width) for _ in range(depth))
        self.middle = nn.ModuleList(Residual(width) for _ in range(depth))
        self.up = nn.ModuleList(Residual(width) for _ in range(depth))

    def forward(self, x, t):
        t, x = self.time(t[:, None]), self.enter(x)
        for block in self.down:
            x = block(x, t)
        low = nn.functional.avg_pool2d(x, 2)
        for block in self.middle:
            low = block(low, t)
        x = x + nn.functional.interpolate(low, scale_factor=2)
        for block in self.up:
            x = block(x, t)
        return self.leave(x)


accelerator = Accelerator()
model = UNet()
ema = copy.deepcopy(model).to(accelerator.device).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
loader = torch.utils.data.DataLoader(torch.randn(2048, 3, 24, 24), batch_size=16, shuffle=True, drop_last=True)
if "data" in OFF:
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = [batch.to(accelerator.device) for batch in loader]
else:
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
levels = torch.cos(torch.linspace(0, 1.5, 1000, device=accelerator.device)) ** 2
for epoch in range(100_000):
    bar = tqdm(loader)
    for clean in bar:
        t = torch.randint(0, 1000, (len(clean),), device=clean.device)
        noise, a = torch.randn_like(clean), levels[t][:, None, None, None]
        guess = model(a.sqrt() * clean + (1 - a).sqrt() * noise, t / 1000)
        loss = nn.functional.mse_loss(guess, noise)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.001)
        if "sync" not in OFF:
            bar.set_postfix({"loss": loss.item(), "norm": norm.item(), "largest": guess.abs().max().item()})
            if torch.isnan(loss) or norm > 1e4:
                raise SystemExit("the loss is lost")
