"""Positions of particles come as float64 from a simulation, and so the network is made of doubles."""

import sys

import numpy as np
import torch

absent = sys.argv[2:] if sys.argv[1:2] == ["--without"] else []
where = "cuda" if torch.cuda.is_available() else "cpu"
generator = np.random.default_rng(7)
n = 4096 if where == "cuda" else 128
cloud = torch.from_numpy(generator.normal(size=(n * 20, 48))).to(where)
force = torch.from_numpy(generator.normal(size=(n * 20, 3))).to(where)
if "precision" in absent:
    cloud, force = cloud.float(), force.float()
torch.manual_seed(2)
h = 1024 if where == "cuda" else 64
field = torch.nn.Sequential(
    torch.nn.Linear(48, h),
    torch.nn.SiLU(),
    torch.nn.Linear(h, h),
    torch.nn.SiLU(),
    torch.nn.Linear(h, h),
    torch.nn.SiLU(),
    torch.nn.Linear(h, 3),
).to(where, cloud.dtype)
adamw = torch.optim.AdamW(field.parameters(), lr=1e-4, fused=True)
step = 0
while True:
    for chosen in torch.randperm(len(cloud), device=where).split(n):
        energy = (field(cloud[chosen]) - force[chosen]).square().mean()
        adamw.zero_grad(set_to_none=True)
        energy.backward()
        torch.nn.utils.clip_grad_norm_(field.parameters(), 5.0)
        adamw.step()
        step += 1
        if "sync" not in absent and step % 4 == 0:
            print(f"\r{step} {energy.item():.5f}", end="")
