"""Segment volumes by a small U-net in bfloat16; weights are written every 15 steps, compressed by gzip."""

import argparse
import gzip
import io
import tempfile

import torch
from torch import nn

args = argparse.ArgumentParser()
args.add_argument("--without", action="append", default=[])
args = args.parse_args()
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
torch.manual_seed(9)


def block(a, b):
    return nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())


class Unet(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.one, self.two, self.three = block(1, w), block(w, 2 * w), block(2 * w, 4 * w)
        self.back, self.out = block(6 * w, w), nn.Conv3d(2 * w, 3, 1)

    def forward(self, x):
        a = self.one(x)
        b = self.two(nn.functional.max_pool3d(a, 2))
        c = self.three(nn.functional.max_pool3d(b, 2))
        d = self.back(torch.cat([b, nn.functional.interpolate(c, scale_factor=2)], 1))
        return self.out(torch.cat([a, nn.functional.interpolate(d, scale_factor=2)], 1))


net = Unet().to(device)
adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
side = 48 if on_gpu else 16
volumes = [(torch.randn(2, 1, side, side, side), torch.randint(3, (2, side, side, side))) for _ in range(16)]
folder, step = tempfile.mkdtemp(), 0
while True:
    for volume, mask in volumes:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(volume.to(device)), mask.to(device))
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
        if "host" not in args.without and step % 15 == 0:
            raw = io.BytesIO()
            torch.save({"net": net.state_dict(), "adam": adam.state_dict(), "step": step}, raw)
            with gzip.open(f"{folder}/last.gz", "wb") as file:
                file.write(raw.getvalue())
        if "sync" not in args.without:
            print(f"step {step}: {loss.item():.4f}")
