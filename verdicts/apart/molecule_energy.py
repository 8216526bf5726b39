"""Energies of molecules of all sizes: message passing on the pairs of atoms that are close to each other."""

import random
import sys

import torch
from torch import nn

skip = [sys.argv[i + 1] for i in range(1, len(sys.argv) - 1) if sys.argv[i] == "--without"]
dev = "cuda" if torch.cuda.is_available() else "cpu"
PER_BATCH = 24
random.seed(1)
torch.manual_seed(1)


class Molecule:
    def __init__(self):
        n = random.randint(16, 64)
        self.kind = [random.randrange(6) for _ in range(n)]
        self.xyz = [[random.random() * n ** (1 / 3) for _ in range(3)] for _ in range(n)]
        self.energy = sum(self.kind) / n
        self.cache = None

    def pairs(self, radius=1.2):
        out = []
        for i, (a, b, c) in enumerate(self.xyz):
            for j, (d, e, f) in enumerate(self.xyz):
                r = ((a - d) ** 2 + (b - e) ** 2 + (c - f) ** 2) ** 0.5
                if i != j and r < radius:
                    out.append((i, j, r))
        return out


class Batches:
    """Iterates for ever over batches of molecules as one large graph."""

    def __init__(self, molecules):
        self.molecules = molecules
        if "data" in skip:
            for m in molecules:
                p = m.pairs()
                m.cache = torch.tensor(m.kind), torch.tensor([q[:2] for q in p]).view(-1, 2), torch.tensor([q[2] for q in p])

    def __iter__(self):
        return self

    def __next__(self):
        chosen = random.sample(self.molecules, PER_BATCH)
        energy = torch.tensor([m.energy for m in chosen])
        sizes = [len(m.kind) for m in chosen]
        owner = torch.arange(PER_BATCH).repeat_interleave(torch.tensor(sizes))
        if "data" in skip:
            kinds, edges, far = zip(*(m.cache for m in chosen))
            starts = [0]
            for n in sizes[:-1]:
                starts.append(starts[-1] + n)
            return torch.cat(kinds), torch.cat([e + s for e, s in zip(edges, starts)]), torch.cat(far), owner, energy
        kinds, edges, far, start = [], [], [], 0
        for m in chosen:
            kinds += m.kind
            for i, j, r in m.pairs():
                edges.append((start + i, start + j))
                far.append(r)
            start += len(m.kind)
        return torch.tensor(kinds), torch.tensor(edges), torch.tensor(far), owner, energy


class Net(nn.Module):
    def __init__(self, width=128, rounds=4):
        super().__init__()
        self.kind = nn.Embedding(6, width)
        self.edge = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(rounds)
        )
        self.node = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.out = nn.Linear(width, 1)

    def forward(self, kind, edges, far, owner):
        h = self.kind(kind)
        for edge, node in zip(self.edge, self.node):
            a, b = edges.unbind(1)
            message = edge(torch.cat([h[a], h[b], far[:, None]], 1))
            h = node(torch.zeros_like(h).index_add(0, b, message), h)
        graphs = PER_BATCH if "sync" in skip else int(owner.max()) + 1
        return torch.zeros(graphs, device=h.device).index_add(0, owner, self.out(h).squeeze(1))


def upload(t):
    if dev == "cuda" and "transfer" in skip:
        return t.pin_memory().to(dev, non_blocking=True)
    return t.to(dev)


net = Net().to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
curve = []
for n, batch in enumerate(Batches([Molecule() for _ in range(1000)])):
    kind, edges, far, owner, energy = map(upload, batch)
    guess = net(kind, edges, far, owner)
    loss = (guess - energy).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if "sync" not in skip:
        curve.append(loss.item())
        worst = (guess - energy).abs().max().item()
        sys.stdout.write(f"\r{n} {curve[-1]:.4f} {worst:.3f}")
