"""Traffic of 40 sensors by a transformer in Lightning, checked against held-out days after every 30 batches."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

OFF = sys.argv[2::2]


def days(count):
    return TensorDataset(torch.randn(count, 48, 40), torch.randn(count, 40))


class Traffic(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True)
        self.enter = nn.Linear(40, 96)
        self.body = nn.TransformerEncoder(layer, 1 if "launch" in OFF else 4, enable_nested_tensor=False)
        self.leave = nn.Linear(96, 40)
        self.worst = {}

    def forward(self, x):
        return self.leave(self.body(self.enter(x))[:, -1])

    def training_step(self, batch, _):
        loss = nn.functional.l1_loss(self(batch[0]), batch[1])
        if "sync" not in OFF:
            self.log("train", loss.item())
        return loss

    def validation_step(self, batch, _):
        guess = self(batch[0])
        self.log("valid", nn.functional.l1_loss(guess, batch[1]))
        for day, (row, truth) in enumerate(zip(guess.tolist(), batch[1].tolist())):
            errors = sorted(abs(a - b) for a, b in zip(row, truth))
            self.worst[day] = errors[-1], errors[len(errors) // 2]

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters(), lr=1e-3)


pl.seed_everything(30, verbose=False)
checks = {"limit_val_batches": 0} if "host" in OFF else {"val_check_interval": 30, "check_val_every_n_epoch": None}
trainer = pl.Trainer(
    max_steps=1_000_000,
    max_epochs=-1,
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=0,
    **checks,
)
trainer.fit(Traffic(), DataLoader(days(7680), batch_size=64, shuffle=True), DataLoader(days(30_000), batch_size=256))
