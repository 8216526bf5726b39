"""Flow matching on small glyph images with Accelerate; a sheet of pictures is drawn from averaged weights now and then."""

import argparse
import copy
import itertools
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["host", "sync", "data"])
parser.add_argument("--draw-every", type=int, default=15)
args = parser.parse_args()
big = torch.cuda.is_available()
BATCH, WIDTH, SHEET, EULER = (96, 384, 100, 60) if big else (8, 48, 8, 30)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(WIDTH, 6, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.modulate = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x, condition):
        a, b, c, d = self.modulate(condition)[:, None].chunk(4, 2)
        h = self.norm(x) * (1 + a) + b
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm(x) * (1 + c) + d)


class Velocity(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, WIDTH, 2, 2), nn.ConvTranspose2d(WIDTH, 1, 2, 2)
        self.place, self.kind = nn.Parameter(torch.randn(1, 256, WIDTH) * 0.02), nn.Embedding(62, WIDTH)
        self.time = nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.register_buffer("waves", torch.exp(torch.linspace(0, 6, 32)))

    def forward(self, x, t, kind):
        angles = t[:, None] * self.waves
        condition = F.silu(self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.kind(kind))
        h = self.enter(x).flatten(2).mT + self.place
        for layer in self.layers:
            h = layer(h, condition)
        return self.leave(h.mT.unflatten(2, (16, 16)))


accelerator = Accelerator(mixed_precision="bf16" if big else "no")
torch.manual_seed(9)
device = accelerator.device
glyphs = torch.utils.data.TensorDataset(torch.rand(12_800, 1, 32, 32), torch.randint(62, (12_800,)))
if "data" in args.without:
    glyphs = list(zip(*(part.split(BATCH) for part in glyphs.tensors)))
loader = torch.utils.data.DataLoader(glyphs, batch_size=None if "data" in args.without else BATCH, shuffle=True, pin_memory=big)
model = Velocity()
average = copy.deepcopy(model).to(device).requires_grad_(False)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-4), loader)
folder = tempfile.mkdtemp()


@torch.no_grad()
def draw(step):
    x, kind = torch.randn(SHEET, 1, 32, 32, device=device), torch.arange(SHEET, device=device) % 62
    with accelerator.autocast():
        for t in torch.linspace(0, 1, EULER + 1)[:-1]:
            x = x + average(x, torch.full((SHEET,), float(t), device=device), kind).float() / EULER
    np.save(os.path.join(folder, f"sheet_{step % 4}.npy"), x.clamp(0, 1).mul(255).byte().cpu().numpy())


step, smooth = 0, None
for epoch in itertools.count():
    for glyph, kind in loader:
        noise, t = torch.randn_like(glyph), torch.rand(len(glyph), device=device)
        mixed = torch.lerp(noise, glyph, t[:, None, None, None])
        loss = F.mse_loss(model(mixed, t, kind).float(), glyph - noise)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)
        step += 1
        if "sync" not in args.without:
            smooth = loss.item() if smooth is None else 0.99 * smooth + 0.01 * loss.item()
        if "host" not in args.without and step % args.draw_every == 0:
            draw(step)
