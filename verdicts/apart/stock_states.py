"""A hidden-state model of returns in Lightning; the whole validation set is scored every 10 batches."""

import sys

import torch
from torch import nn

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

without = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without"]


class States(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRU(8, 48, batch_first=True), nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.cell(x)[0])[..., 0]

    def training_step(self, batch, i):
        loss = nn.functional.huber_loss(self(batch[0]), batch[1])
        if "sync" not in without:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch, i):
        self.log("val_loss", nn.functional.huber_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def windows(n):
    return torch.utils.data.TensorDataset(torch.randn(n, 40, 8), torch.randn(n, 40))


L.seed_everything(2, verbose=False)
train = torch.utils.data.DataLoader(windows(6_400), batch_size=32, shuffle=True)
valid = None if "host" in without else torch.utils.data.DataLoader(windows(1_600), batch_size=32)
L.Trainer(
    max_epochs=-1, val_check_interval=None if "host" in without else 10, logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
).fit(States(), train, valid)  # fmt: skip
