"""A deep network for wine prices in Lightning; hooks keep mean, deviation and range of what each layer gives."""

import sys
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

OFF = sys.argv[2::2]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Prices(pl.LightningModule):
    def __init__(self, depth=12, width=160):
        super().__init__()
        self.enter, self.leave = nn.Linear(11, width), nn.Linear(width, 1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.kept, self.calls = defaultdict(list), 0
        if "host" not in OFF:
            for name, module in self.blocks.named_modules():
                if not list(module.children()):
                    module.register_forward_hook(self.keep(name))

    def keep(self, name):
        def hook(module, inputs, output):
            values = output.detach().float()
            if "sync" in OFF:
                self.latest = values.mean(), values.std(), values.abs().max()
                return
            self.kept[name].append((values.mean().item(), values.std().item(), values.abs().max().item()))
            del self.kept[name][:-50]

        return hook

    def training_step(self, batch, index):
        x, price = batch
        return nn.functional.mse_loss(self.leave(self.blocks(self.enter(x))).squeeze(1), price)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-4)


pl.seed_everything(19)
wines = TensorDataset(torch.randn(12_800, 11), torch.randn(12_800))
trainer = pl.Trainer(
    max_epochs=-1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Prices(), DataLoader(wines, batch_size=128, shuffle=True))
