"""Batches in the encoder and decoder form of pytorch-forecasting, made by a feed instead of a `TimeSeriesDataSet`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stoker.errors import OptionError
from stoker.feed.feed import Feed
from stoker.integrations.batches import Batch, ConvertedBatches


class ForecastBatches(ConvertedBatches):
    """What `TimeSeriesDataSet.to_dataloader()` yields, for models of pytorch-forecasting: `(x, (y, None))`.

    Columns of numbers are in the order of a `TimeSeriesDataSet`: static ones, known ones, then the others. It does not scale: begin with a
    feed that does (`normalize=`), or let the model. `target_scale` is 0 and 1, so predictions have the scale of the feed.

    Args:
        feed: A feed of `Windows` with a horizon, with `Returns(index=True, series=True)` and `last_batch="drop"` or `"short"`.
        target: The column to forecast.
        static_reals: Columns that have one value per series.
        known_reals: Columns whose future is known, such as calendar features.
        unknown_reals: Other columns of numbers; the target is one of them if it is an input of the model.
        categoricals: Columns of categories, as codes.

    Raises:
        OptionError: The feed has no such column, or it lacks an entry that is needed.

    Example:
        >>> loader = ForecastBatches(feed, target="load", known_reals=["hour"], unknown_reals=["load"])  # doctest: +SKIP
        >>> pytorch_lightning.Trainer(max_epochs=3).fit(model, loader)  # doctest: +SKIP
    """

    def __init__(
        self,
        feed: Feed,
        *,
        target: str,
        static_reals: Sequence[str] = (),
        known_reals: Sequence[str] = (),
        unknown_reals: Sequence[str] = (),
        categoricals: Sequence[str] = (),
    ) -> None:
        super().__init__(feed)
        if not (feed.returns.index and feed.returns.series):
            raise OptionError(
                "the feed has no entries 'sample' and 'series'. Pass returns=stoker.feed.Returns(index=True, series=True).",
                parameter="returns",
            )
        self.check_columns(target, *static_reals, *known_reals, *unknown_reals, *categoricals)
        self.target, self.categoricals = target, tuple(categoricals)
        self.reals = (*static_reals, *known_reals, *unknown_reals)
        if len(feed.stores) > 1:
            raise OptionError(f"the feed has {len(feed.stores)} stores; expected one.", parameter="feed")
        lengths = np.asarray(feed.stores[0].lengths)
        self._series_starts = np.cumsum(lengths) - lengths

    def convert(self, batch: Batch) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, None]]:
        """`x` and `y` of pytorch-forecasting."""
        size = len(batch[self.target])
        series = batch["series"]
        starts = self.feed.samples.locate(batch["sample"].cpu().numpy()).starts - self._series_starts[series.cpu().numpy()]
        first = torch.from_numpy(starts).to(series.device) + self.length
        target = batch[f"{self.target}_target"].float()
        x = {
            "encoder_cat": self._codes(batch, "", self.length),
            "encoder_cont": self._numbers(batch, "", self.length),
            "encoder_target": batch[self.target].float(),
            "encoder_lengths": torch.full((size,), self.length, device=series.device),
            "decoder_cat": self._codes(batch, "_target", self.horizon),
            "decoder_cont": self._numbers(batch, "_target", self.horizon),
            "decoder_target": target,
            "decoder_lengths": torch.full((size,), self.horizon, device=series.device),
            "decoder_time_idx": first[:, None] + torch.arange(self.horizon, device=series.device),
            "groups": series[:, None],
            "target_scale": torch.tensor([0.0, 1.0], device=series.device).expand(size, 2),
        }
        return x, (target, None)

    def _numbers(self, batch: Batch, part: str, steps: int) -> torch.Tensor:
        return _side_by_side([batch.get(name + part, batch[name]).float() for name in self.reals], batch[self.target], steps)

    def _codes(self, batch: Batch, part: str, steps: int) -> torch.Tensor:
        return _side_by_side(
            [batch.get(name + part, batch[name]).long() for name in self.categoricals], batch[self.target], steps
        ).long()


def _side_by_side(columns: list[torch.Tensor], like: torch.Tensor, steps: int) -> torch.Tensor:
    """Columns as [batch, steps, columns]; one that has a value per series has it at each step."""
    whole = [column if column.dim() == 2 else column[:, None].expand(-1, steps) for column in columns]
    return torch.stack(whole, dim=-1) if whole else like.new_zeros(len(like), steps, 0)
