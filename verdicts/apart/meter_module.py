"""Next readings of electricity meters as a LightningModule with the usual logging."""

import itertools
import sys
import tempfile

import torch
from torch import nn, optim, utils

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, LearningRateMonitor, RichProgressBar, TQDMProgressBar
    from lightning.pytorch.loggers import CSVLogger
except ImportError:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import Callback, LearningRateMonitor, RichProgressBar, TQDMProgressBar
    from pytorch_lightning.loggers import CSVLogger

GONE = [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--without"]


class Meter(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        if "dispatch" in GONE:
            self.net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4))
        else:
            self.net = nn.Sequential(
                nn.Linear(48, 64),
                *[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU()) for _ in range(3)],
                nn.Linear(64, 4),
            )

    def training_step(self, batch, batch_idx):
        past, following = batch
        error = self.net(past) - following
        loss = error.square().mean()
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log_dict({f"train/mae_{h}": e for h, e in enumerate(error.abs().mean(0))}, on_step=True, on_epoch=True)
        self.log("train/bias", error.mean(), prog_bar=True)
        return loss

    def configure_optimizers(self):
        best = optim.AdamW(self.parameters(), lr=2e-3)
        return {
            "optimizer": best,
            "lr_scheduler": {"scheduler": optim.lr_scheduler.ExponentialLR(best, 0.99999), "interval": "step"},
        }


class Averages(Callback):
    def on_after_backward(self, trainer, module):
        module.log_dict({f"grad/{n}": p.grad.norm() for n, p in module.net.named_parameters()})


def loop(module, loader):
    best = optim.AdamW(module.parameters(), lr=2e-3)
    schedule = optim.lr_scheduler.ExponentialLR(best, 0.99999)
    for past, following in itertools.chain.from_iterable(loader for _ in itertools.count()):
        loss = (module.net(past) - following).square().mean()
        best.zero_grad()
        loss.backward()
        best.step()
        schedule.step()


if __name__ == "__main__":
    pl.seed_everything(12, verbose=False)
    series = torch.randn(300, 500).cumsum(1)
    x = series.unfold(1, 52, 4).reshape(-1, 52)
    if "data" in GONE:
        loader = utils.data.DataLoader(list(zip(x[:, :48].split(64), x[:, 48:].split(64))), batch_size=None, shuffle=True)
    else:
        loader = utils.data.DataLoader(utils.data.TensorDataset(x[:, :48], x[:, 48:]), batch_size=64, shuffle=True)
    if "host" in GONE:
        loop(Meter(), loader)
    bar = TQDMProgressBar(refresh_rate=5) if RichProgressBar else None
    logger = CSVLogger(tempfile.mkdtemp(), flush_logs_every_n_steps=200)
    trainer = pl.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=5,
        callbacks=[LearningRateMonitor("step"), Averages(), bar],
        enable_checkpointing=False,
    )
    trainer.fit(Meter(), loader)
