"""Match images to captions by two towers, in float16 with a scaler; recall at 1, 5 and 10 of every batch is printed."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

OFF = sys.argv[2::2]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(23)
BATCH, WIDTH = 128, 256
half = torch.bfloat16 if "sync" in OFF or device == "cpu" else torch.float16


class Tower(nn.Module):
    def __init__(self, inputs, depth=6):
        super().__init__()
        self.enter = nn.Linear(inputs, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, WIDTH))
            for _ in range(depth)
        )

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return F.normalize(x, dim=-1)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.images, self.words = Tower(768), Tower(512)
        self.temperature = nn.Parameter(torch.tensor(2.65))

    def forward(self, image, text):
        with torch.autocast(device, half, cache_enabled=False):
            scores = self.temperature.exp() * self.images(image) @ self.words(text).T
        truth = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores.float(), truth) + F.cross_entropy(scores.float().T, truth)) / 2, scores


model = Towers().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
scaler = torch.amp.GradScaler(device, enabled=half is torch.float16)
images, texts = torch.randn(8192, 768, device=device), torch.randn(8192, 512, device=device)


def both_ways(image, text):
    loss, scores = model(image, text)
    scaler.scale(loss).backward()
    return loss, scores


def captured():
    still = torch.randn(BATCH, 768, device=device), torch.randn(BATCH, 512, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            both_ways(*still)
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = both_ways(*still)

    def replay(*batch):
        torch._foreach_copy_(still, batch)
        graph.replay()
        return answer

    return replay


graphed = "launch" in OFF and device == "cuda"
step_of = captured() if graphed else both_ways
step = 0
while step < 10_000_000:
    for rows in torch.randperm(8192, device=device).split(BATCH):
        loss, scores = step_of(images[rows], texts[rows])
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if not graphed:
            optimizer.zero_grad(set_to_none=True)
        step += 1
        if "sync" in OFF and step % 100:
            continue
        ranks = (scores > scores.diagonal()[:, None]).sum(1)
        recall = [(ranks < k).float().mean().item() for k in (1, 5, 10)]
        print(step, loss.item(), norm.item(), *recall, scaler.get_scale())
