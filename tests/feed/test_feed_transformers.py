"""Hugging Face Trainer over the samples of a feed; with the feed itself, see tests/integrations/test_hugging_face.py."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import NUM_SERIES, assert_same, language_feed, run_example, series_of

ALL = list(range(NUM_SERIES))
STEPS = NUM_SERIES // 4


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Not when tests are collected: each process of a run collects all of them, and this import takes seconds."""
    global Config, Tiny, transformers
    transformers = pytest.importorskip("transformers")
    from tests.feed.transformers_model import Config, Tiny


def arguments(folder: Path, **options: Any) -> Any:
    given = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "save_strategy": "no", **options}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "dataloader_pin_memory": False}
    return transformers.TrainingArguments(output_dir=str(folder), seed=3, **quiet, **given)


@pytest.mark.parametrize("collate", [True, False], ids=["collate", "default-collator"])
@pytest.mark.parametrize("remove", [True, False], ids=["remove-unused", "keep-all"])
def test_training_is_fed_every_sample_each_epoch(tmp_path: Path, remove: bool, collate: bool) -> None:
    dataset, model = language_feed().as_dataset(), Tiny(Config())
    before = model.layer.weight.item()
    transformers.Trainer(
        model=model,
        args=arguments(tmp_path, remove_unused_columns=remove),
        train_dataset=dataset,
        data_collator=dataset.collate if collate else None,
    ).train()
    assert model.layer.weight.item() != before
    assert len(model.fed) == 2 * STEPS
    first, second = list(chain(*model.series[:STEPS])), list(chain(*model.series[STEPS:]))
    assert first != second
    assert sorted(first) == sorted(second) == ALL
    for batch in model.fed:
        assert_same(batch, dataset[series_of(batch)])


def test_a_training_run_resumed_from_a_checkpoint_ends_as_the_one_that_was_not_stopped(tmp_path: Path) -> None:
    dataset = language_feed().as_dataset()
    whole, rest = Tiny(Config()), Tiny(Config())
    args = arguments(tmp_path, save_strategy="steps", save_steps=4, remove_unused_columns=False)
    transformers.Trainer(model=whole, args=args, train_dataset=dataset, data_collator=dataset.collate).train()
    transformers.Trainer(model=rest, args=args, train_dataset=dataset, data_collator=dataset.collate).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-4")
    )
    assert rest.series == whole.series[4:]
    assert torch.equal(rest.layer.weight, whole.layer.weight)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found:UserWarning")
def test_the_example_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_example("Hugging Face Trainer")["arguments"].max_steps == 10
