"""Word vectors of verses by skip-gram with negative samples; only rows of words that occurred are updated."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["optimizer", "data", "host"])
without = parser.parse_args().without
torch.manual_seed(1870)
WORDS, WIDTH, NEGATIVES, BATCH = 8000, 64, 12, 32


class RowAdam(torch.optim.Optimizer):
    """Adam with moments and a count of steps for each row."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, together=False):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "together": together})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"], state["count"] = torch.zeros_like(p), torch.zeros_like(p), torch.zeros(len(p))
                m, v, count = state["m"], state["v"], state["count"]
                grad = p.grad.coalesce()
                rows, values = grad.indices()[0], grad.values()
                if group["together"]:
                    count[rows] += 1
                    m[rows] = b1 * m[rows] + (1 - b1) * values
                    v[rows] = b2 * v[rows] + (1 - b2) * values.square()
                    n = count[rows, None]
                    p[rows] -= group["lr"] * (m[rows] / (1 - b1**n)) / ((v[rows] / (1 - b2**n)).sqrt() + group["eps"])
                    continue
                for row, g in zip(rows.tolist(), values):
                    count[row] += 1
                    n = count[row].item()
                    m[row].mul_(b1).add_(g, alpha=1 - b1)
                    v[row].mul_(b2).addcmul_(g, g, value=1 - b2)
                    p[row].addcdiv_(m[row] / (1 - b1**n), (v[row] / (1 - b2**n)).sqrt_().add_(group["eps"]), value=-group["lr"])


class Windows(Dataset):
    def __init__(self, n=200_000):
        self.words = (torch.rand(n).pow(3) * WORDS).long()

    def __len__(self):
        return len(self.words) - 5

    def __getitem__(self, i):
        return self.words[i + 2], torch.cat([self.words[i : i + 2], self.words[i + 3 : i + 5]])


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center, self.around = nn.Embedding(WORDS, WIDTH, sparse=True), nn.Embedding(WORDS, WIDTH, sparse=True)

    def forward(self, center, context):
        vector = self.center(center)
        wrong = torch.randint(WORDS, (NEGATIVES,))
        near = (self.around(context) * vector[:, None]).sum(2)
        far = vector @ self.around(wrong).T
        return -(nn.functional.logsigmoid(near).mean() + nn.functional.logsigmoid(-far).mean())


dataset, model = Windows(), SkipGram()
if "data" in without:
    windows = dataset.words.unfold(0, 5, 1)
    rows = [(part[:, 2], part[:, [0, 1, 3, 4]]) for part in windows[torch.randperm(len(windows))].split(BATCH)]
    loader = DataLoader(rows, batch_size=None, shuffle=True)
else:
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
optimizer = RowAdam(model.parameters(), lr=2e-3, together="optimizer" in without)
for epoch in range(1000):
    for step, (center, context) in enumerate(loader):
        loss = model(center, context)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "host" not in without and step % 20 == 0:
            print(f"\r{epoch} {step} {loss.item():.4f}", end="")
