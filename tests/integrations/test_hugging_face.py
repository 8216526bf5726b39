"""Hugging Face Trainer with feeds: the order of the feed, and a resume that continues with the next batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import NUM_SERIES, language_feed, series_of

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


def run(folder: Path, *, resume: int | None = None, order: Any = None, **options: Any) -> Any:
    """A trained model; it remembers the series that it was fed."""
    model = Tiny(Config())
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "dataloader_pin_memory": False}
    given = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-3, **options}
    args = transformers.TrainingArguments(output_dir=str(folder), seed=3, remove_unused_columns=False, **quiet, **given)
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
