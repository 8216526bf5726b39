"""Trainers that users would pick instead, each as its documentation shows it, on one CPU, without a progress bar and saving.

Each entry of PEERS imports its library when it is called, and gives a function that trains a model on batches.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
Weights = list[torch.Tensor]
PACKAGES = ("pytorch-lightning", "accelerate", "transformers")


def be_quiet() -> None:
    """Nothing but results is to be seen."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def versions() -> dict[str, str]:
    """Of those that are there; Fabric comes with Lightning."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


class _Batches:
    """A list of batches, which Lightning would take for a list of loaders."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def lightning(*, logs: bool) -> Callable[[nn.Module, MakeOptimizer, Iterable[Any]], Weights]:
    """Lightning's Trainer; with `logs`, each step calls `self.log`."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
            super().__init__()
            self.model = model
            self.make_optimizer = make_optimizer

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            value = mse_loss(self.model(x), y)
            if logs:
                self.log("loss", value)
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.make_optimizer(self.model)

    def run(model: nn.Module, make_optimizer: MakeOptimizer, batches: Iterable[Any]) -> Weights:
        trainer = pytorch_lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(model, make_optimizer), _Batches(batches) if isinstance(batches, list) else batches)
        return list(model.parameters())

    return run


def fabric() -> Callable[[nn.Module, MakeOptimizer, Iterable[Any]], Weights]:
    """Fabric: the user's own loop."""
    from lightning_fabric import Fabric

    def run(model: nn.Module, make_optimizer: MakeOptimizer, batches: Iterable[Any]) -> Weights:
        fabric = Fabric(accelerator="cpu", devices=1)
        module, optimizer = fabric.setup(model, make_optimizer(model))
        if isinstance(batches, torch.utils.data.DataLoader):
            batches = fabric.setup_dataloaders(batches)
        module.train()
        for x, y in batches:
            optimizer.zero_grad()
            value = mse_loss(module(x), y)
            fabric.backward(value)
            optimizer.step()
        return list(model.parameters())

    return run


def accelerate() -> Callable[[nn.Module, MakeOptimizer, Iterable[Any]], Weights]:
    """Accelerate: the user's own loop."""
    from accelerate import Accelerator

    def run(model: nn.Module, make_optimizer: MakeOptimizer, batches: Iterable[Any]) -> Weights:
        accelerator = Accelerator(cpu=True)
        module, optimizer = accelerator.prepare(model, make_optimizer(model))
        if isinstance(batches, torch.utils.data.DataLoader):
            batches = accelerator.prepare(batches)
        module.train()
        for x, y in batches:
            optimizer.zero_grad()
            value = mse_loss(module(x), y)
            accelerator.backward(value)
            optimizer.step()
        return list(model.parameters())

    return run


def transformers() -> Callable[[nn.Module, Any, int], Weights]:
    """The Trainer of Hugging Face, with its own loader and its default optimizer (fused AdamW, clipping, a linear schedule)."""
    from transformers import Trainer, TrainingArguments

    class Wrapped(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            prediction = self.model(x)
            return {"loss": mse_loss(prediction, labels), "logits": prediction}

    class Named(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self, samples: Any) -> None:
            self.samples = samples

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            x, y = self.samples[index]
            return {"x": x, "labels": y}

    def run(model: nn.Module, samples: Any, rows: int) -> Weights:
        with tempfile.TemporaryDirectory() as folder:
            options = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=rows,
                num_train_epochs=1,
                learning_rate=1e-3,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            )
            trainer = Trainer(model=Wrapped(model), args=options, train_dataset=Named(samples))
            trainer.log = lambda *given, **named: None  # it prints
            trainer.train()
        return list(model.parameters())

    return run


PEERS: dict[str, Callable[[], Callable[..., Weights]]] = {
    "Lightning": lambda: lightning(logs=False),
    "Lightning with self.log": lambda: lightning(logs=True),
    "Fabric": fabric,
    "Accelerate": accelerate,
    "HF Trainer": transformers,
}
