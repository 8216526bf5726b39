"""Learn to route parcels: a pointer network trained by REINFORCE, compared with improved tours on a fixed set now and then."""

import argparse
import math

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--without", action="append", default=[], choices=["host", "data", "optimizer"])
cli.add_argument("--stops", type=int, default=22)
cli.add_argument("--compare", type=int, default=18)
cli = cli.parse_args()
torch.manual_seed(77)
torch.set_num_threads(min(2, torch.get_num_threads()))


class Pointer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.mix = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.cell, self.query, self.start = nn.GRUCell(width, width), nn.Linear(width, width), nn.Parameter(torch.zeros(width))

    def forward(self, places, greedy=False):
        nodes = self.mix(self.enter(places))
        h, current = nodes.mean(1), self.start.expand(len(places), -1)
        visited = torch.zeros(places.shape[:2], dtype=torch.bool)
        tour, logp = [], 0.0
        for _ in range(places.shape[1]):
            h = self.cell(current, h)
            scores = (nodes @ self.query(h)[:, :, None]).squeeze(2) / 8
            scores = scores.masked_fill(visited, -math.inf).log_softmax(1)
            choice = scores.argmax(1) if greedy else torch.multinomial(scores.exp(), 1).squeeze(1)
            logp = logp + scores.gather(1, choice[:, None]).squeeze(1)
            visited = visited.scatter(1, choice[:, None], True)
            current = nodes[torch.arange(len(nodes)), choice]
            tour.append(choice)
        return torch.stack(tour, 1), logp


def length(places, tour):
    ordered = places.gather(1, tour[:, :, None].expand(-1, -1, 2))
    return (ordered - ordered.roll(1, 1)).norm(dim=2).sum(1)


def two_opt(places, tour):
    distance = [[math.dist(a, b) for b in places] for a in places]
    better, n = True, len(tour)
    while better:
        better = False
        for i in range(n - 1):
            for j in range(i + 2, n - (i == 0)):
                a, b, c, d = tour[i], tour[i + 1], tour[j], tour[(j + 1) % n]
                if distance[a][c] + distance[b][d] < distance[a][b] + distance[c][d] - 1e-9:
                    tour[i + 1 : j + 1] = tour[i + 1 : j + 1][::-1]
                    better = True
    return sum(distance[a][b] for a, b in zip(tour, tour[1:] + tour[:1]))


policy = Pointer()
adam = torch.optim.Adam(policy.parameters(), lr=1e-3, fused="optimizer" in cli.without)
held = torch.rand(1200, cli.stops, 2)
pool = torch.rand(64, 40, cli.stops, 2)
baseline, gaps, update = None, [], 0
while True:
    places = pool[update % 64] if "data" in cli.without else torch.rand(40, cli.stops, 2)
    tour, logp = policy(places)
    cost = length(places, tour)
    baseline = cost.mean() if baseline is None else 0.95 * baseline + 0.05 * cost.mean()
    loss = ((cost - baseline) * logp).mean()
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    adam.step()
    update += 1
    if update % cli.compare == 0 and "host" not in cli.without:
        with torch.no_grad():
            tours = policy(held, greedy=True)[0]
        reference = [two_opt(p, list(t)) for p, t in zip(held.tolist(), tours.tolist())]
        gaps.append(length(held, tours).mean().item() / (sum(reference) / len(reference)) - 1)
        print(f"{update}: {100 * gaps[-1]:.1f} % above", flush=True)
