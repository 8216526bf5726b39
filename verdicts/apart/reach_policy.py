"""Actor-critic for many point masses that have to reach a goal; environments are tensors on the device of the policy."""

import argparse

import torch
from torch import nn

cli = argparse.ArgumentParser()
cli.add_argument("--without", action="append", default=[])
WITHOUT = set(cli.parse_args().without)
DEV = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENVS, HORIZON = (2048, 24) if DEV.type == "cuda" else (64, 24)
GRAPHED = "launch" in WITHOUT and DEV.type == "cuda"
torch.manual_seed(0)


class Env:
    def __init__(self):
        self.pos, self.vel, self.goal = (torch.rand(ENVS, 2, device=DEV) * 2 - 1 for _ in range(3))
        self.age = torch.zeros(ENVS, device=DEV)

    def observe(self):
        return torch.cat([self.pos, self.vel, self.goal - self.pos, self.age[:, None] / 100], 1)

    def step(self, push):
        self.vel.mul_(0.95).add_(push.clamp(-1, 1), alpha=0.05)
        self.pos.add_(self.vel, alpha=0.1).clamp_(-2, 2)
        self.age.add_(1)
        distance = (self.goal - self.pos).norm(dim=1)
        done = (distance < 0.05) | (self.age >= 100)
        reward = -distance - 0.01 * push.square().sum(1) + (distance < 0.05).float()
        fresh = torch.rand(ENVS, 2, device=DEV) * 2 - 1
        self.pos.copy_(torch.where(done[:, None], fresh, self.pos))
        self.vel.mul_((~done)[:, None])
        self.age.mul_(~done)
        return reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.value, self.log_std = nn.Linear(64, 2), nn.Linear(64, 1), nn.Parameter(torch.zeros(2) - 0.5)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.mean(h), self.log_std.exp(), self.value(h).squeeze(-1)


env, policy = Env(), ActorCritic().to(DEV)
optimizer = torch.optim.Adam(policy.parameters(), 3e-4)
obs, act = torch.zeros(HORIZON, ENVS, 7, device=DEV), torch.zeros(HORIZON, ENVS, 2, device=DEV)
rew, end, val, adv = (torch.zeros(HORIZON, ENVS, device=DEV) for _ in range(4))
returns = []


@torch.no_grad()
def rollout(read):
    for t in range(HORIZON):
        obs[t] = env.observe()
        mean, std, val[t] = policy(obs[t])
        act[t] = mean + std * torch.randn_like(mean)
        rew[t], end[t] = env.step(act[t])
        if read:
            returns.append(rew[t].mean().item())
    last = policy(env.observe())[2]
    carried = torch.zeros(ENVS, device=DEV)
    for t in reversed(range(HORIZON)):
        following = val[t + 1] if t + 1 < HORIZON else last
        alive = 1 - end[t]
        carried = rew[t] + 0.99 * following * alive - val[t] + 0.99 * 0.95 * alive * carried
        adv[t] = carried


if GRAPHED:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        rollout(False)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rollout(False)

update = 0
while True:
    if GRAPHED:
        graph.replay()
        if "sync" not in WITHOUT:
            returns.extend(r.mean().item() for r in rew)
    else:
        rollout("sync" not in WITHOUT)
    mean, std, value = policy(obs)
    dist = torch.distributions.Normal(mean, std, validate_args=False)
    scaled = (adv - adv.mean()) / (adv.std() + 1e-8)
    entropy = dist.entropy().sum(-1).mean()
    loss = -(dist.log_prob(act).sum(-1) * scaled).mean() + 0.5 * (value - (adv + val)).square().mean() - 1e-3 * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    update += 1
    if "sync" not in WITHOUT:
        print(f"\r{update} loss {loss.item():.3f} entropy {entropy.item():.3f} return {sum(returns[-HORIZON:]):.3f}", end="")
        del returns[:-1000]
