"""Gestures of a glove with 16 sensors: every sensor has its own small network. Lightning."""

from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

SENSORS, WIDTH, STAGES, CLASSES = 16, 48, 5, 12


class Separate(nn.Module):
    """A list of networks, as in the paper."""

    def __init__(self):
        super().__init__()
        stage = lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.stages = nn.ModuleList(nn.ModuleList(stage() for _ in range(SENSORS)) for _ in range(STAGES))

    def forward(self, x):
        for stage in self.stages:
            x = torch.stack([x[:, i] + net(x[:, i]) for i, net in enumerate(stage)], 1)
        return x


class Together(nn.Module):
    """The same networks with their weights in two tensors for each stage."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(STAGES, 2, SENSORS, WIDTH, WIDTH) / WIDTH**0.5)
        self.b = nn.Parameter(torch.zeros(STAGES, 2, SENSORS, 1, WIDTH))

    def forward(self, x):
        x = x.transpose(0, 1)
        for (w1, w2), (b1, b2) in zip(self.w, self.b):
            x = x + torch.baddbmm(b2, F.gelu(torch.baddbmm(b1, x, w1)), w2)
        return x.transpose(0, 1)


class Gestures(pl.LightningModule):
    def __init__(self, without):
        super().__init__()
        self.quiet = "sync" in without
        self.body = Together() if "launch" in without else Separate()
        self.head = nn.Linear(SENSORS * WIDTH, CLASSES)
        self.losses, self.seen = [], 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.head(self.body(x).flatten(1))
        loss = F.cross_entropy(logits, y)
        if not self.quiet:
            top3 = (logits.topk(3).indices == y[:, None]).any(1).float().mean()
            self.losses.append(loss.item())
            self.seen += int((y > 0).sum())
            self.log("loss", loss, prog_bar=True)
            self.log_dict({"top3": top3.item(), "logit": float(logits.abs().max()), "seen": float(self.seen)}, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4)


def main():
    parser = ArgumentParser()
    parser.add_argument("--without", action="append", default=[])
    without = parser.parse_args().without
    pl.seed_everything(3)
    x, y = torch.randn(8192, SENSORS, WIDTH), torch.randint(CLASSES, (8192,))
    if "data" in without:
        loader = DataLoader(list(zip(x.split(64), y.split(64))), batch_size=None, shuffle=True)
    else:
        loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
    trainer = pl.Trainer(
        max_epochs=-1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(Gestures(without), loader)


if __name__ == "__main__":
    main()
