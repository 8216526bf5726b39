"""A run of the Python `Trainer`, opened for predictions: the user's model with its best weights, and the feed of the run.

`Trainer.fit` keeps `feed.json` in the folder of the run: the view, the columns and their types, as `Feed.settings()` gives them. The
code of the model is not kept, so the model is an argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch
from torch import nn

from stoker._batch import to_device
from stoker.errors import CheckpointInvalidError, OptionError
from stoker.feed.feed import Feed
from stoker.feed.padding import Returns
from stoker.feed.prefetch import Distributed
from stoker.split.series_scaler import SeriesScaler
from stoker.store.store import Store
from stoker.train.export import Exported, export_model, load_trained
from stoker.train.fit import predict
from stoker.train.run import FEED, SCALER
from stoker.train.stream import Stream

MAX_BYTES = 64 << 20
GOLDEN_ROWS = 64
"""Samples that an exported program is checked on."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedModel:
    """A trained model of your own, with the feed that it was trained on. `stoker.load(run, model=…)` returns one."""

    folder: Path
    step: int
    """The update of the weights."""
    averaged: bool
    """Whether they are the EMA that the run kept."""
    model: nn.Module
    device: torch.device

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        return f"<run {self.folder}: {type(self.model).__name__} with {parameters:,} parameters, weights of step {self.step:,}>"

    def feed(self, store: Store, *, batch_size: int = 1024, **options: Any) -> Feed:
        """Return the feed of the run over another store: its view, columns, types and scales.

        Args:
            store: A store with the columns of the run.
            batch_size: Samples per batch.
            options: Further options of `stoker.Feed`, such as `subset=` or `columns=`.

        Returns:
            The feed, in the order of the store.
        """
        path = self.folder / FEED
        try:
            with path.open("rb") as file:
                settings = msgspec.json.decode(file.read(MAX_BYTES))
            saved = self.folder / SCALER
            scaler = SeriesScaler.open(saved).for_store(store) if saved.is_file() else None
            given = {"batch_size": batch_size, "distributed": Distributed(rank=0, world_size=1), **options}
            return Feed.from_settings(settings, store, scaler=scaler, **given)
        except FileNotFoundError:
            raise CheckpointInvalidError(
                f"{path} is missing: the run was not trained on a feed of stoker. Give batches to predict().", path=path
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointInvalidError(f"{path} is damaged: {error}. Put it back, or train the run again.", path=path) from error

    def predict(
        self,
        data: Store | Iterable[Any],
        *,
        forward: Callable[[nn.Module, Any], torch.Tensor] | None = None,
        batch_size: int = 1024,
    ) -> dict[str, torch.Tensor]:
        """Predict for all samples of a store, or for all batches.

        Args:
            data: A store with the columns of the run; or batches, such as a feed or a DataLoader.
            forward: A function `(model, batch)` that returns the prediction. By default `model(batch[column])` for a feed of one
                column, `model(batch[0])` for pairs, and otherwise `model(batch)`.
            batch_size: Samples per batch of a store.

        Returns:
            `prediction` with a row per sample, and `sample` and `series` of a store.

        Example:
            >>> import numpy as np, torch, stoker
            >>> store = stoker.Store.from_arrays(x=[np.arange(20.0)])
            >>> feed = stoker.Feed(store, stoker.Windows(4, horizon=1, tail="drop"), batch_size=4)
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, folder="runs/line", progress=False)
            >>> _ = trainer.fit(feed)
            >>> run = stoker.load("runs/line", model=torch.nn.Linear(4, 1))
            >>> run.predict(store)["prediction"].shape
            torch.Size([16, 1])
        """
        batches = (
            self.feed(data, batch_size=batch_size, returns=Returns(index=True, series=True)) if isinstance(data, Store) else data
        )
        column = _only_column(batches)

        def usual(model: nn.Module, batch: Any) -> Any:
            if column is not None:
                return model(batch[column])
            return model(batch[0]) if isinstance(batch, tuple | list) and len(batch) == 2 else model(batch)

        return predict(
            self.model,
            forward or usual,
            Stream(batches, self.device),
            is_loss=False,
            context=nullcontext(),
        )

    def table(self, store: Store) -> pa.Table:
        """Predict for all samples of a store, as a table with a row per sample and output.

        Returns:
            The name of the series, the number of the sample in the store, the number of the output, and the prediction.
        """
        from stoker.experiment.prediction_table import names_of

        result = self.predict(store)
        rows = result["prediction"].reshape(len(result["sample"]), -1).cpu().numpy()
        outputs = rows.shape[1]
        return pa.table(
            {
                "series": names_of(store, np.repeat(result["series"].cpu().numpy(), outputs)),
                "sample": np.repeat(result["sample"].cpu().numpy(), outputs),
                "output": np.tile(np.arange(outputs), len(rows)),
                "prediction": rows.ravel(),
            }
        )

    def export(self, store: Store, path: str | os.PathLike[str], *, onnx: bool = False) -> Exported:
        """Export the model as a program that needs none of your code, checked on samples of a store.

        Args:
            store: A store with the columns of the run.
            path: Where the program goes. It takes a mapping with the entries of a batch that the model reads.
            onnx: Write ONNX for other runtimes, instead of a program for `torch.export.load`.

        Returns:
            What was written, and the largest difference between the program and the model.

        Raises:
            OptionError: The store has fewer than two samples.
            TrainError: The model cannot be exported, or the program gives other answers. Nothing was written.

        Example:
            >>> import numpy as np, torch, stoker
            >>> store = stoker.Store.from_arrays(x=[np.arange(20.0)])
            >>> feed = stoker.Feed(store, stoker.Windows(4, horizon=1, tail="drop"), batch_size=4)
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, folder="runs/program", progress=False)
            >>> _ = trainer.fit(feed)
            >>> exported = stoker.load("runs/program", model=torch.nn.Linear(4, 1)).export(store, "line.pt2")
            >>> torch.export.load(exported.path).module()({"x": torch.ones(7, 4)}).shape
            torch.Size([7, 1])
        """
        feed = self.feed(store, batch_size=GOLDEN_ROWS)
        batch: dict[str, Any] = dict(next(iter(feed)))
        rows = int(batch["valid"].sum()) if "valid" in batch else len(next(iter(batch.values())))
        batch = {name: values[:rows] for name, values in batch.items()}
        column = _only_column(feed)
        if column is not None:
            return export_model(_OfOneEntry(self.model, column), {column: batch[column]}, Path(path), onnx=onnx)
        read = _Read(to_device(batch, self.device))
        with torch.no_grad():
            self.model(read)
        return export_model(
            self.model, {name: batch[name] for name in batch if name in (read.names or batch)}, Path(path), onnx=onnx
        )


def _only_column(batches: object) -> str | None:
    """Return the column of a feed that has one: its model is called with the tensor, not with the batch."""
    columns = [column.name for column in batches.columns] if isinstance(batches, Feed) else []
    return columns[0] if len(columns) == 1 else None


class _OfOneEntry(nn.Module):
    """A model of a tensor, as one of a batch."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return self.model(batch[self.name])


class _Read(dict[str, Any]):
    """A batch that knows which of its entries were read by name."""

    def __init__(self, batch: Any) -> None:
        super().__init__(batch)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def open_trained(folder: Path, model: nn.Module, *, latest: bool, device: torch.device) -> TrainedModel:
    """Load the weights of a run into a model, which is changed."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"model is {model!r}; expected a torch.nn.Module of the shape of the run's.", parameter="model")
    loaded = load_trained(model, folder, latest=latest)
    model = model.to(device).eval()
    return TrainedModel(folder=folder, step=loaded.step, averaged=loaded.averaged, model=model, device=device)
