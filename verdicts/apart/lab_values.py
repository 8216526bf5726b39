"""Predict lab values of a stay with Lightning; TorchMetrics-like scores are updated and computed in every step."""

import sys

import torch
from torch import nn

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

dropped = {b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without"}


class RunningScore:
    """Mean absolute and squared error and the explained variance so far."""

    def __init__(self):
        self.sums = None

    def __call__(self, guess, truth):
        guess, truth = guess.detach().float(), truth.float()
        parts = torch.stack([(guess - truth).abs().mean(), (guess - truth).square().mean(), truth.var(), (guess - truth).var()])
        self.sums = parts if self.sums is None else self.sums + parts
        mae, mse, spread, left = self.sums
        return {"mae": mae.item(), "rmse": mse.sqrt().item(), "r2": (1 - left / spread).item()}


class Stays(L.LightningModule):
    def __init__(self):
        super().__init__()
        width = 96
        depth = 2 if "launch" in dropped else 10
        self.enter = nn.Linear(31, width)
        self.mix = nn.ModuleList(nn.GRUCell(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, 7)
        self.score = RunningScore()

    def forward(self, rows):
        state = torch.tanh(self.enter(rows))
        for cell in self.mix:
            state = cell(state, state) + state
        return self.leave(state)

    def training_step(self, batch, _):
        rows, labs = batch
        guess = self(rows)
        loss = nn.functional.smooth_l1_loss(guess, labs)
        if "sync" not in dropped:
            for name, value in self.score(guess, labs).items():
                self.log(name, value, prog_bar=True)
        return loss

    def configure_optimizers(self):
        chosen = torch.optim.AdamW(self.parameters(), lr=3e-4)
        return {
            "optimizer": chosen,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ExponentialLR(chosen, 0.9999), "interval": "step"},
        }


L.seed_everything(8, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(25_600, 31), torch.randn(25_600, 7))
batches = torch.utils.data.DataLoader(data, 256, shuffle=True, pin_memory=True)
L.Trainer(
    max_epochs=-1,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    devices=1,
    enable_progress_bar="sync" not in dropped,
).fit(Stays(), batches)
