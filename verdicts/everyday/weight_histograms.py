"""Lightning with a callback that makes histograms of all weights."""

import sys

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))

    def training_step(self, batch, _):
        return mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Histograms(pl.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        self.last = {name: np.histogram(weight.detach().numpy(), 50) for name, weight in module.named_parameters()}


data = torch.utils.data.TensorDataset(torch.randn(8192, 64), torch.randn(8192, 1))
pl.Trainer(
    max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[] if FIXED else [Histograms()],
).fit(Module(), torch.utils.data.DataLoader(data, batch_size=64))  # fmt: skip
