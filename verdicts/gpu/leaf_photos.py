"""Lightning on photos of leaves: few of them, so that an epoch is short."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import lightning.pytorch as L
except ImportError:
    import pytorch_lightning as L

OFF = sys.argv[2::2]


class Leaves(Dataset):
    def __init__(self, count=192):
        self.photos = torch.randint(0, 256, (count, 3, 80, 80), dtype=torch.uint8)

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, i):
        photo = self.photos[i].float() / 255
        top, left = torch.randint(0, 16, (2,)).tolist()
        photo = photo[:, top : top + 64, left : left + 64]
        return (photo.flip(2) if torch.rand(()) < 0.5 else photo), i % 12


class LitLeaves(L.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = []
        for inside, outside in ((3, 32), (32, 64), (64, 128), (128, 128)):
            for k in range(1 if "launch" in OFF else 4):
                blocks += [nn.Conv2d(outside if k else inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
            blocks.append(nn.MaxPool2d(2))
        self.net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 12))

    def training_step(self, batch, _):
        photos, kinds = batch
        loss = nn.functional.cross_entropy(self.net(photos), kinds)
        if "sync" not in OFF:
            self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9, nesterov=True)


def main():
    L.seed_everything(5)
    loader = DataLoader(Leaves(), batch_size=16, shuffle=True, num_workers=4, pin_memory=torch.cuda.is_available())
    if "data" in OFF:
        loader = DataLoader(list(loader), batch_size=None)
    trainer = L.Trainer(
        max_epochs=100_000, devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1
    )
    trainer.fit(LitLeaves(), loader)


main()
