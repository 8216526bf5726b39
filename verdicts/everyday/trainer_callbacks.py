"""A trainer with callbacks."""

import sys
import time

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


class Callback:
    def on_step_end(self, step, logs): ...


class Network(Callback):
    def on_step_end(self, step, logs):
        if not FIXED and step % 10 == 0:
            self.send({k: float(v) for k, v in logs.items()})

    def send(self, logs):
        time.sleep(0.12)


class Trainer:
    def __init__(self, model, loader, callbacks):
        self.model, self.loader, self.callbacks, self.step = model, loader, callbacks, 0

    def training_step(self, batch):
        x, y = batch
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss.detach()

    def train(self):
        while True:
            for batch in self.loader:
                loss = self.training_step(batch)
                optimizer.step()
                self.model.zero_grad()
                self.step += 1
                for callback in self.callbacks:
                    callback.on_step_end(self.step, {"loss": loss})


Trainer(model, loader, [Network()]).train()
