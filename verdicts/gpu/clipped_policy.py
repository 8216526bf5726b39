"""Proximal policy updates of a small actor and critic, with a check of the divergence in each of them."""

import sys
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

OFF = sys.argv[2::2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Rollout:
    seen: Tensor
    actions: Tensor
    old: Tensor
    advantage: Tensor
    returns: Tensor

    def part(self, rows):
        return Rollout(*(value[rows] for value in vars(self).values()))


def layers(inputs, outputs):
    sizes = [inputs, *[128] * 5]
    body = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.Tanh())]
    return nn.Sequential(*body, nn.Linear(128, outputs))


class Learner:
    def __init__(self):
        self.actor, self.critic = layers(24, 6).to(DEVICE), layers(24, 1).to(DEVICE)
        self.weights = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.weights, lr=3e-4, eps=1e-5)
        self.history, self.graph = [], None

    def losses(self, part):
        logs = self.actor(part.seen).log_softmax(-1)
        new = logs.gather(1, part.actions[:, None])[:, 0]
        ratio = (new - part.old).exp()
        gain = torch.min(ratio * part.advantage, ratio.clamp(0.8, 1.2) * part.advantage).mean()
        error = (self.critic(part.seen)[:, 0] - part.returns).square().mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        loss = -gain + 0.5 * error - 0.01 * entropy
        loss.backward()
        return loss, (part.old - new).mean(), ((ratio - 1).abs() > 0.2).float().mean(), entropy

    def replayed(self, part):
        if self.graph is None:
            self.static = Rollout(*(value.clone() for value in vars(part).values()))
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                self.losses(self.static)
            torch.cuda.synchronize()
            self.optimizer.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.answer = self.losses(self.static)
        for kept, value in zip(vars(self.static).values(), vars(part).values()):
            kept.copy_(value)
        self.graph.replay()
        return self.answer

    def update(self, part):
        if "launch" in OFF and DEVICE.type == "cuda":
            loss, divergence, clipped, entropy = self.replayed(part)
        else:
            self.optimizer.zero_grad()
            loss, divergence, clipped, entropy = self.losses(part)
        norm = nn.utils.clip_grad_norm_(self.weights, 0.5)
        self.optimizer.step()
        if "sync" in OFF:
            return False
        self.history.append([value.item() for value in (loss, divergence, clipped, entropy, norm)])
        return abs(self.history[-1][1]) > 1e6


torch.manual_seed(4)
learner = Learner()
while True:
    size = 4096
    rollout = Rollout(
        torch.randn(size, 24), torch.randint(0, 6, (size,)), torch.randn(size) - 2, torch.randn(size), torch.randn(size)
    )
    rollout = Rollout(*(value.to(DEVICE) for value in vars(rollout).values()))
    for epoch in range(10):
        for rows in torch.randperm(size, device=DEVICE).split(512):
            if learner.update(rollout.part(rows)):
                break
