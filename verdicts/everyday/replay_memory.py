"""Q-learning from a memory of transitions."""

import random
import sys
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward following done")
FIXED = "--fixed" in sys.argv
random.seed(0)
torch.manual_seed(0)


class Memory:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)
        for _ in range(capacity):
            state = torch.randn(8)
            self.items.append(Transition(state, random.randrange(4), random.random(), state + 0.1, random.random() < 0.02))
        self.states = torch.stack([item.state for item in self.items])
        self.actions = torch.tensor([item.action for item in self.items])
        self.rewards = torch.tensor([item.reward for item in self.items])
        self.done = torch.tensor([float(item.done) for item in self.items])

    def sample(self, size):
        if FIXED:
            rows = torch.randint(0, len(self.states), (size,))
            return self.states[rows], self.actions[rows], self.rewards[rows], self.states[rows] + 0.1, self.done[rows]
        batch = Transition(*zip(*random.sample(self.items, size)))
        states, following = torch.stack(batch.state), torch.stack(batch.following)
        return states, torch.tensor(batch.action), torch.tensor(batch.reward), following, torch.tensor(batch.done).float()


memory = Memory(20_000)
online, target = (nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
for step in range(1_000_000):
    states, actions, rewards, following, done = memory.sample(256)
    with torch.no_grad():
        value = rewards + 0.99 * (1 - done) * target(following).amax(dim=1)
    chosen = online(states).gather(1, actions[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(chosen, value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        target.load_state_dict(online.state_dict())
