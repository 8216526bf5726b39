"""Ice on lakes from satellite chips: a residual network in Lightning, bfloat16 and channels last."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

options = argparse.ArgumentParser()
options.add_argument("--without", action="append", default=[], choices=["compute", "sync", "data"])
without = set(options.parse_args().without)
cuda = torch.cuda.is_available()
torch.backends.cudnn.benchmark = True
L.seed_everything(55, verbose=False)


class Chips(Dataset):
    def __init__(self, n=3840):
        self.chips, self.ice = torch.randn(n, 6, 32, 32), torch.rand(n)

    def __len__(self):
        return len(self.chips)

    def __getitems__(self, rows):
        return self.chips[rows], self.ice[rows]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class IceNet(L.LightningModule):
    def __init__(self, width, depth=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(6, width, 3, padding=1),
            *(Residual(width) for _ in range(depth)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 1),
        ).to(memory_format=torch.channels_last)

    def training_step(self, batch, index):
        chips, ice = batch
        guess = self.net(chips.contiguous(memory_format=torch.channels_last)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(guess.float(), ice)
        if "sync" not in without and index % 10 == 0:
            self.log("train/loss", loss.item(), prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=cuda)


chips, batch = Chips(), 128 if cuda else 4
if "data" in without:
    loader = DataLoader(list(zip(chips.chips.split(batch), chips.ice.split(batch))), batch_size=None, pin_memory=cuda)
else:
    loader = DataLoader(chips, batch_size=batch, shuffle=True, pin_memory=cuda, collate_fn=lambda rows: rows)
width = 256 if cuda else 16
trainer = L.Trainer(
    max_epochs=-1,
    devices=1,
    precision="bf16-mixed" if cuda else "32-true",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(IceNet(width // 2 if "compute" in without else width), loader)
