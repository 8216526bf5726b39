"""Batches for the models of NeuralForecast: each window comes as a series of its own, so the feed decides the order of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from stoker.feed.feed import Feed
from stoker.integrations.batches import Batch, ConvertedBatches


class WindowBatches(ConvertedBatches):
    """What the `training_step` of a NeuralForecast model takes: windows of `input_size + h` steps.

    NeuralForecast puts all windows of its series on the GPU and draws from them with replacement. Here the feed delivers each window
    exactly once per epoch, from a store that may be larger than memory. Build the model with the length of the windows as `input_size`,
    their horizon as `h`, `windows_batch_size=None`, and `training_data_availability_threshold=1.0`, so that it takes whole windows only.
    Train it with a Lightning `Trainer`.

    Args:
        feed: A feed of `Windows` with a horizon, with `last_batch="drop"` or `"short"`.
        target: The column to forecast, `y` of the model.
        exogenous: Columns that the model names in `hist_exog_list` or `futr_exog_list`.
        static: Columns that have one value per series, in `stat_exog_list` of the model.

    Raises:
        OptionError: The feed has no such column, or windows that may be padded.

    Example:
        >>> options = {"windows_batch_size": None, "training_data_availability_threshold": 1.0}
        >>> model = neuralforecast.models.NHITS(h=24, input_size=168, **options)  # doctest: +SKIP
        >>> pytorch_lightning.Trainer(max_epochs=3).fit(model, WindowBatches(feed, target="load"))  # doctest: +SKIP
    """

    def __init__(self, feed: Feed, *, target: str, exogenous: Sequence[str] = (), static: Sequence[str] = ()) -> None:
        super().__init__(feed)
        self.check_columns(target, *exogenous, *static)
        self.columns, self.static = (target, *exogenous), tuple(static)
        self._names = pd.Index(["y", *exogenous, "available_mask"])

    def convert(self, batch: Batch) -> dict[str, Any]:
        """`temporal` is [batch, columns, steps], as a `TimeSeriesLoader` has it."""
        rows = [torch.cat([batch[name], batch[f"{name}_target"]], dim=1).float() for name in self.columns]
        temporal = torch.stack([*rows, torch.ones_like(rows[0])], dim=1)
        entries: dict[str, Any] = {"temporal": temporal, "temporal_cols": self._names, "y_idx": 0}
        if self.static:
            entries |= {
                "static": torch.stack([batch[name].float() for name in self.static], dim=1),
                "static_cols": pd.Index(self.static),
            }
        return entries
