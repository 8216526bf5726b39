"""A model of Lightning that remembers what it was fed, and a trainer without output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch


class Tiny(lightning.LightningModule):
    """Remembers what it was fed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.trained: list[list[int]] = []
        self.validated: list[list[list[int]]] = []

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return ((self.layer(batch["x"]) - batch["x_target"]) ** 2).mean()

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        self.trained.append(batch["sample"].tolist())
        return self.loss(batch)

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.validated[-1].append(batch["sample"].tolist())
        self.log("loss", self.loss(batch), batch_size=len(batch["x"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-8)


class SetEpoch(lightning.Callback):
    """As loops do that are written for a distributed sampler."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        trainer.train_dataloader.set_epoch(trainer.current_epoch)


def trainer(folder: Path | str, **options: Any) -> Any:
    given = {"max_epochs": 2, "enable_checkpointing": False, **options}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(default_root_dir=folder, **{**quiet, "accelerator": "cpu", "devices": 1, **given})
