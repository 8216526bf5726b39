"""Models of transformers that remember what they were fed."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.feed.ecosystem import series_of


class Config(transformers.PretrainedConfig):
    model_type = "tiny"


class Tiny(transformers.PreTrainedModel):
    """Predicts the next step from the present one; remembers what it was fed."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = torch.nn.Linear(1, 1)
        self.fed: list[dict[str, torch.Tensor]] = []
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        torch.nn.init.constant_(self.layer.weight, 0.5)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, input_ids: Any = None, labels: Any = None, loss_masks: Any = None) -> dict[str, torch.Tensor]:
        self.fed.append({"input_ids": input_ids, "labels": labels, "loss_masks": loss_masks})
        guess = self.layer(input_ids[..., None])[..., 0]
        return {"loss": (((guess - labels) ** 2) * loss_masks).sum() / loss_masks.sum(), "logits": guess}

    @property
    def series(self) -> list[list[int]]:
        return [series_of(batch) for batch in self.fed]
