"""Order films for viewers with a listwise loss, and report NDCG and inversions as training goes."""

import argparse
import math

import torch

a = argparse.ArgumentParser()
a.add_argument("--without", action="append", default=[])
a.add_argument("--list", type=int, default=72)
a.add_argument("--viewers", type=int, default=24)
a = a.parse_args()
torch.manual_seed(99)


def ndcg(scores, grades, k=10):
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    gain = lambda ranked: sum((2**g - 1) / math.log2(r + 2) for r, g in enumerate(ranked[:k]))
    return gain([grades[i] for i in order]) / max(gain(sorted(grades, reverse=True)), 1e-9)


def inversions(scores, grades):
    bad = pairs = 0
    for i, (s, g) in enumerate(zip(scores, grades)):
        for t, h in zip(scores[i + 1 :], grades[i + 1 :]):
            if g != h:
                pairs += 1
                bad += (s - t) * (g - h) < 0
    return bad / max(pairs, 1)


class Ranker(torch.nn.Module):
    def __init__(self, features=64):
        super().__init__()
        self.viewer = torch.nn.Embedding(500, 64)
        self.film = torch.nn.Linear(features, 64)
        self.attend = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

    def forward(self, viewer, films):
        f = self.film(films)
        f = f + self.attend(f, f, f, need_weights=False)[0]
        v = self.viewer(viewer)[:, None].expand_as(f)
        return self.mlp(torch.cat([f, v], -1)).squeeze(-1)


films = torch.randn(3000, 64)
taste = torch.randn(500, 64)
every = 200 if "host" in a.without else 1


def sample():
    viewer = torch.randint(500, (a.viewers,))
    rows = torch.stack([torch.randperm(3000)[: a.list] for _ in range(a.viewers)])
    x = films[rows]
    grade = ((x * taste[viewer][:, None]).sum(-1) / 8 + 2).clamp(0, 4).round()
    return viewer, x, grade


pool = [sample() for _ in range(50)] if "data" in a.without else None
model = Ranker()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
quality, wrong, step = 0.0, 0.0, 0
while True:
    viewer, x, grade = pool[step % 50] if pool else sample()
    score = model(viewer, x)
    loss = -(grade.softmax(1) * score.log_softmax(1)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % every == 0:
        lists = list(zip(score.tolist(), grade.tolist()))
        quality = 0.9 * quality + 0.1 * sum(ndcg(s, g) for s, g in lists) / len(lists)
        wrong = 0.9 * wrong + 0.1 * sum(inversions(s, g) for s, g in lists) / len(lists)
    step += 1
    if step % 20 == 0:
        print(f"{step} loss={loss.item():.3f} ndcg={quality:.3f} inversions={wrong:.3f}")
