"""Ratings of meals for many canteens with Lightning: one head, and errors of each canteen in a CSV file."""

import argparse
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
except ImportError:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import CSVLogger

CANTEENS, MEALS = 18, 900


class Ratings(pl.LightningModule):
    def __init__(self, quiet):
        super().__init__()
        self.quiet = quiet
        self.meal, self.canteen = nn.Embedding(MEALS, 48), nn.Embedding(CANTEENS, 16)
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, meal, canteen):
        return self.net(torch.cat([self.meal(meal), self.canteen(canteen)], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        meal, canteen, rating = batch
        errors = (self(meal, canteen) - rating).square()
        loss = errors.mean()
        if self.quiet:
            if batch_idx % 100 == 0:
                self.log("train/loss", loss)
            return loss
        self.log("train/loss", loss, prog_bar=True)
        for number in range(CANTEENS):
            own = errors.detach()[canteen == number]
            self.log(f"train/canteen_{number:02d}", own.mean() if len(own) else torch.tensor(0.0))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", action="append", default=[], choices=["host", "data"])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=256)
    arguments = parser.parse_args()
    pl.seed_everything(5, verbose=False)
    columns = (
        torch.randint(MEALS, (arguments.rows,)),
        torch.randint(CANTEENS, (arguments.rows,)),
        torch.rand(arguments.rows) * 4 + 1,
    )
    if "data" in arguments.without:
        parts = list(zip(*(column.split(arguments.batch_size) for column in columns)))
        loader = DataLoader(parts, batch_size=None, shuffle=True)
    else:
        loader = DataLoader(TensorDataset(*columns), arguments.batch_size, shuffle=True)
    quiet = "host" in arguments.without
    trainer = pl.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(tempfile.mkdtemp(), flush_logs_every_n_steps=100 if quiet else 1),
        log_every_n_steps=100 if quiet else 1,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=not quiet,
    )
    trainer.fit(Ratings(quiet), loader)


if __name__ == "__main__":
    main()
