"""An actor and a critic on stored transitions, updated one after the other with target networks; Lightning with manual optimization."""

import argparse
import copy

import torch
from torch import nn

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

options = argparse.ArgumentParser()
options.add_argument("--without", action="append", default=[])
skip = options.parse_args().without


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs))


class Agent(L.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.actor, self.critics = network(17, 6), nn.ModuleList(network(23, 1) for _ in range(2))
        self.actor_target, self.critic_targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.returns = []

    def training_step(self, batch, index):
        state, action, reward, after = batch
        act, crit = self.optimizers()
        with torch.no_grad():
            following = torch.cat([after, torch.tanh(self.actor_target(after))], 1)
            goal = reward + 0.99 * torch.min(*(critic(following) for critic in self.critic_targets))
        pair = torch.cat([state, action], 1)
        loss = sum(nn.functional.mse_loss(critic(pair), goal) for critic in self.critics)
        crit.zero_grad()
        self.manual_backward(loss)
        crit.step()
        value = -self.critics[0](torch.cat([state, torch.tanh(self.actor(state))], 1)).mean()
        act.zero_grad()
        self.manual_backward(value)
        act.step()
        with torch.no_grad():
            if "launch" in skip:
                sources = [*self.actor.parameters(), *self.critics.parameters()]
                targets = [*self.actor_target.parameters(), *self.critic_targets.parameters()]
                torch._foreach_lerp_(targets, sources, 0.005)
            else:
                for own, target in ((self.actor, self.actor_target), (self.critics, self.critic_targets)):
                    for a, b in zip(own.parameters(), target.parameters(), strict=True):
                        b.copy_(0.005 * a + 0.995 * b)
        if "sync" not in skip:
            self.returns.append((loss.item(), value.item(), goal.mean().item()))

    def configure_optimizers(self):
        fused = "launch" in skip
        return torch.optim.Adam(self.actor.parameters(), 3e-4, fused=fused), torch.optim.Adam(
            self.critics.parameters(), 3e-4, fused=fused
        )


torch.manual_seed(3)
n = 64_000
memory = torch.utils.data.TensorDataset(torch.randn(n, 17), torch.rand(n, 6), torch.randn(n, 1), torch.randn(n, 17))
loader = torch.utils.data.DataLoader(memory, batch_size=256, shuffle=True, num_workers=0)
L.Trainer(
    max_epochs=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    devices=1,
    barebones=False,
).fit(Agent(), loader)
