"""Lightning with a wide network and data in memory: nothing else to gain."""

import sys

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import mse_loss

WIDTH = 256 if "--fixed" in sys.argv else 2048
torch.manual_seed(0)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))

    def training_step(self, batch, _):
        return mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


data = torch.utils.data.TensorDataset(torch.randn(8192, 256), torch.randn(8192, 8))
pl.Trainer(
    max_epochs=-1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Module(), torch.utils.data.DataLoader(data, batch_size=512))
