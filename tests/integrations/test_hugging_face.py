"""Hugging Face Trainer with feeds: the order of the feed, a resume that continues with the next batch, and samples as a dataset."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import NUM_SERIES, assert_same, language_feed, series_of

import stoker
from stoker.errors import OptionError

STEPS = NUM_SERIES // 4


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Not when tests are collected: this import takes seconds."""
    global Config, FeedTrainer, Tiny, transformers
    transformers = pytest.importorskip("transformers")
    from tests.feed.transformers_model import Config, Tiny

    from stoker.integrations.hugging_face import FeedTrainer


def arguments(folder: Path, **options: Any) -> Any:
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "dataloader_pin_memory": False}
    given = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "remove_unused_columns": False,
        **options,
    }
    return transformers.TrainingArguments(output_dir=str(folder), seed=3, **quiet, **given)


def run(folder: Path, *, resume: int | None = None, order: Any = None) -> Any:
    """A trained model; it remembers the series that it was fed."""
    model = Tiny(Config())
    args = arguments(folder, num_train_epochs=3, save_strategy="steps", save_steps=1)
    trainer = FeedTrainer(model=model, args=args, train_feed=language_feed(order=order or stoker.Shuffle(seed=9)))
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / f"checkpoint-{resume}"))
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, imported: None) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_batches_come_in_the_order_of_the_feed(whole: tuple[Path, Any]) -> None:
    order = language_feed(order=stoker.Shuffle(seed=9))
    assert whole[1].series == [series_of(batch) for _ in range(3) for batch in order]


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS])
def test_a_resumed_run_ends_like_one_that_was_not_stopped(whole: tuple[Path, Any], step: int) -> None:
    """In the middle of an epoch, and at its end."""
    rest = run(whole[0], resume=step)
    assert rest.series == whole[1].series[step:]
    assert torch.equal(rest.layer.weight, whole[1].layer.weight)


def test_negative_control_without_the_position_the_order_is_another(whole: tuple[Path, Any], tmp_path: Path) -> None:
    state = json.loads((whole[0] / f"checkpoint-{STEPS + 1}" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["FeedPosition"]["attributes"]["position"]
    folder = tmp_path / f"checkpoint-{STEPS + 1}"
    folder.mkdir()
    for path in (whole[0] / folder.name).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    del state["stateful_callbacks"]["FeedPosition"]
    (folder / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(OptionError, match=f"the checkpoint of step {STEPS + 1} has no position of a feed"):
        run(tmp_path, resume=STEPS + 1)


# ---- without the adapter: samples of a feed as a dataset ----


@pytest.mark.parametrize("collate", [True, False], ids=["collate", "default-collator"])
@pytest.mark.parametrize("remove", [True, False], ids=["remove-unused", "keep-all"])
def test_training_is_fed_every_sample_each_epoch(tmp_path: Path, remove: bool, collate: bool) -> None:
    dataset, model = language_feed().as_dataset(), Tiny(Config())
    before = model.layer.weight.item()
    transformers.Trainer(
        model=model,
        args=arguments(tmp_path, save_strategy="no", remove_unused_columns=remove),
        train_dataset=dataset,
        data_collator=dataset.collate if collate else None,
    ).train()
    assert model.layer.weight.item() != before
    assert len(model.fed) == 2 * STEPS
    first, second = list(chain(*model.series[:STEPS])), list(chain(*model.series[STEPS:]))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(NUM_SERIES))
    for batch in model.fed:
        assert_same(batch, dataset[series_of(batch)])


def test_a_training_run_resumed_from_a_checkpoint_ends_as_the_one_that_was_not_stopped(tmp_path: Path) -> None:
    dataset = language_feed().as_dataset()
    whole, rest = Tiny(Config()), Tiny(Config())
    args = arguments(tmp_path, save_strategy="steps", save_steps=4)
    transformers.Trainer(model=whole, args=args, train_dataset=dataset, data_collator=dataset.collate).train()
    transformers.Trainer(model=rest, args=args, train_dataset=dataset, data_collator=dataset.collate).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-4")
    )
    assert rest.series == whole.series[4:]
    assert torch.equal(rest.layer.weight, whole.layer.weight)
