# swing-up of a pendulum: gradients through the simulation
import torch
from torch import nn

dt, g, horizon, n_envs = 0.05, 9.81, 40, 16


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(3, 16)
        self.l2 = nn.Linear(16, 1)

    def forward(self, theta, omega):
        obs = torch.stack([torch.cos(theta), torch.sin(theta), omega], dim=-1)
        return 2.0 * torch.tanh(self.l2(torch.tanh(self.l1(obs)))).squeeze(-1)


def dynamics(theta, omega, u):
    acc = 1.5 * g * torch.sin(theta) + 3.0 * u
    omega = torch.clamp(omega + acc * dt, -8.0, 8.0)
    return theta + omega * dt, omega


def rollout(policy):
    theta = torch.empty(n_envs).uniform_(-3.14, 3.14)
    omega = torch.empty(n_envs).uniform_(-1, 1)
    cost = torch.zeros(n_envs)
    for _ in range(horizon):
        u = policy(theta, omega)
        theta, omega = dynamics(theta, omega, u)
        cost = cost + (1 - torch.cos(theta)) + 0.1 * omega**2 + 0.001 * u**2
    return cost.mean() / horizon


torch.manual_seed(2)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
best = None
for update in range(50_000):
    loss = rollout(policy)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if update % 100 == 0:
        value = loss.item()
        if best is None or value < best:
            best = value
            torch.save(policy.state_dict(), "policy.pt")
        print(f"update {update} cost {value:.3f} best {best:.3f}")
