"""The drop-in for the authors' data set: the same samples, numbers and order, also within the Trainer of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset, collate
from benchmarks.time_moe.folder import walks, write_folder
from torch.utils.data import DataLoader

from stoker_recipes.time_moe import TimeMoeDataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "set", walks([300, 17, 64, 1, 65, 129, 40]), num_files=3)


@pytest.mark.parametrize(("context", "prediction", "stride"), [(32, 0, None), (24, 8, None), (32, 0, 5)])
@pytest.mark.parametrize("method", [None, "none", "zero", "max"])
def test_samples_are_the_authors_bit_for_bit(
    folder: Path, context: int, prediction: int, stride: int | None, method: str | None
) -> None:
    original = TimeMoEWindowDataset(TimeMoEDataset(folder, method), context, prediction, stride)
    found = TimeMoeDataset(folder, context, prediction, stride, method)
    assert len(found) == len(original)
    for mine, theirs in zip(found, original, strict=True):
        assert list(mine) == list(theirs)
        for name, values in theirs.items():
            assert mine[name].numpy().dtype == values.dtype
            assert mine[name].numpy().tobytes() == values.tobytes()


def test_the_same_seed_gives_the_same_batches(folder: Path) -> None:
    original: Any = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), 32)
    found: Any = TimeMoeDataset(folder, 32, normalization_method="zero", shuffle=True)
    generators = [torch.Generator().manual_seed(9899) for _ in range(2)]
    theirs = DataLoader(original, batch_size=4, shuffle=True, generator=generators[0], collate_fn=collate)
    mine = DataLoader(found, batch_size=4, shuffle=True, generator=generators[1], collate_fn=TimeMoeDataset.collate)
    for one, other in zip(mine, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow  # imports the trainer of transformers
def test_the_trainer_of_hugging_face_is_fed_as_by_the_authors(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Config(transformers.PretrainedConfig):  # type: ignore[misc]
        model_type = "tiny"

    class Tiny(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layer = torch.nn.Linear(1, 1)
            self.fed: list[dict[str, torch.Tensor]] = []
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            torch.nn.init.constant_(self.layer.weight, 0.5)
            torch.nn.init.zeros_(self.layer.bias)

        def forward(self, input_ids: Any = None, labels: Any = None, loss_masks: Any = None) -> Any:
            self.fed.append({"input_ids": input_ids, "labels": labels, "loss_masks": loss_masks})
            guess = self.layer(input_ids[..., None])[..., 0]
            return {"loss": (((guess - labels) ** 2) * loss_masks).sum() / loss_masks.sum(), "logits": guess}

    def fed_by(dataset: Any, collator: Any, *, remove: bool) -> list[dict[str, torch.Tensor]]:
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, save_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True, logging_strategy="no", dataloader_pin_memory=False, seed=9899,
            remove_unused_columns=remove,
        )  # fmt: skip
        model = Tiny(Config())
        transformers.Trainer(model=model, args=args, train_dataset=dataset, data_collator=collator).train()
        return model.fed

    theirs = fed_by(TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), 32), None, remove=False)
    dataset = TimeMoeDataset(folder, 32, normalization_method="zero")
    for collator, remove in ((TimeMoeDataset.collate, False), (None, False), (TimeMoeDataset.collate, True)):
        mine = fed_by(dataset, collator, remove=remove)
        assert len(mine) == len(theirs) == 2 * -(-len(dataset) // 4)
        for one, other in zip(mine, theirs, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in other)
    assert np.isfinite(theirs[0]["labels"].numpy()).all()
