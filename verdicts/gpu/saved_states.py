"""Mix tokens of sensor windows by linear layers; weights and moments are kept in a small file from time to time."""

import gzip
import io
import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(50)
SAVE_EVERY = 10**9 if "host" in OFF else 50


class Mixer(nn.Module):
    def __init__(self, tokens=32, width=128):
        super().__init__()
        self.norms = nn.LayerNorm(width), nn.LayerNorm(width)
        self.a, self.b = self.norms
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.b(x))


class Run:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(9, 128), *(Mixer() for _ in range(12)), nn.Linear(128, 6)).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.windows = torch.randn(8192, 32, 9, device=device)
        self.kinds = torch.randint(0, 6, (8192,), device=device)
        self.step, self.lowest, self.graph = 0, float("inf"), None
        self.rows = torch.arange(64, device=device)
        if "launch" in OFF and device.type == "cuda":
            self.record()

    def gradients(self):
        loss = nn.functional.cross_entropy(self.net(self.windows[self.rows]).mean(1), self.kinds[self.rows])
        loss.backward()
        return loss

    def record(self):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            self.gradients()
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.gradients()

    def save(self):
        buffer = io.BytesIO()
        torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}, buffer)
        with gzip.open("state.pt.gz", "wb", compresslevel=6) as file:
            file.write(buffer.getvalue())

    def train_step(self):
        self.rows.random_(0, 8192)
        if self.graph is None:
            self.optimizer.zero_grad()
            loss = self.gradients()
        else:
            self.graph.replay()
            loss = self.loss
        self.optimizer.step()
        self.step += 1
        if "sync" not in OFF:
            self.lowest = min(self.lowest, loss.item())
        if self.step % SAVE_EVERY == 0:
            self.save()


run = Run()
while run.step < 10_000_000:
    run.train_step()
