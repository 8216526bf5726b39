"""Lightning: the feed itself as a loader of training and validation, and a `DataLoader` over its samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import window_feed

import stoker

pytestmark = [  # the import alone takes seconds; Lightning 2.6 with torch 2.13, and its advice
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]
EPOCH = [list(range(start, min(start + 4, 18))) for start in range(0, 18, 4)]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Not when tests are collected: each process of a run collects all of them, and this import takes as long as half of the others."""
    global SetEpoch, Tiny, lightning, trainer
    lightning = pytest.importorskip("pytorch_lightning")
    from tests.feed.lightning_model import SetEpoch, Tiny, trainer


def shuffled(**options: Any) -> stoker.Feed:
    return window_feed(order=stoker.Shuffle(seed=4), last_batch="short", **options)


def epochs(feed: stoker.Feed, num: int) -> list[list[int]]:
    return [batch["sample"].tolist() for _ in range(num) for batch in feed]


def test_validation_and_test_of_a_shuffled_feed_see_every_sample(tmp_path: Path) -> None:
    model = Tiny()
    trainer(tmp_path).fit(model, train_dataloaders=shuffled(), val_dataloaders=shuffled())
    for validated in model.validated[1:]:
        assert sorted(chain(*validated)) == list(range(18))
    trainer(tmp_path).validate(model, dataloaders=window_feed(last_batch="short"), verbose=False)
    assert model.validated[-1] == EPOCH


def resumed(folder: Path, *, at: int, callbacks: list[Any]) -> tuple[Tiny, Tiny]:
    """A whole training, and one that goes on from a checkpoint of it."""
    both = []
    for path in (None, folder / f"step={at}.ckpt"):
        keep = lightning.callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        model, options = Tiny(), {"callbacks": [keep, *callbacks], "enable_checkpointing": True, "limit_val_batches": 0}
        trainer(folder, max_epochs=3, **options).fit(model, train_dataloaders=shuffled(), ckpt_path=path)
        both.append(model)
    return both[0], both[1]


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("at", [pytest.param(at, marks=[] if at in (1, 5, 6, 10) else pytest.mark.slow) for at in range(1, 11)])
@pytest.mark.parametrize("sets_epoch", [False, True])
def test_a_training_run_resumed_anywhere_continues_with_the_next_batch(tmp_path: Path, at: int, sets_epoch: bool) -> None:
    whole, rest = resumed(tmp_path, at=at, callbacks=[SetEpoch()] if sets_epoch else [])
    assert whole.trained == epochs(shuffled(), 3)
    assert rest.trained == whole.trained[at:]
    assert torch.equal(rest.layer.weight, whole.layer.weight)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_checkpoint_at_the_end_of_an_epoch_is_resumed_with_the_next_one(tmp_path: Path) -> None:
    models = []
    for path in (None, tmp_path / "step=5.ckpt"):
        keep = lightning.callbacks.ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1)
        model, options = Tiny(), {"callbacks": [keep], "enable_checkpointing": True}
        loaders = {"train_dataloaders": shuffled(), "val_dataloaders": window_feed(last_batch="short")}
        trainer(tmp_path, max_epochs=3, **options).fit(model, **loaders, ckpt_path=path)
        models.append(model)
    assert models[1].trained == models[0].trained[5:]
    assert models[1].validated[1:] == [EPOCH, EPOCH]


RANKS = """
import json
from tests.feed.lightning_model import Tiny, lightning, trainer
from tests.feed.test_feed_lightning import shuffled


class Fed(Tiny):
    def train_dataloader(self):
        return shuffled(rank=self.trainer.global_rank, world_size=self.trainer.world_size)


fit = trainer(".", accelerator="cpu", devices=2, strategy="ddp", limit_val_batches=0)
model = Fed()
fit.fit(model)
with open(f"rank{fit.global_rank}.json", "w") as file:  # both print to one pipe
    json.dump({"trained": model.trained, "weight": model.layer.weight.tolist()}, file)
"""


@pytest.mark.slow
def test_two_ranks_share_one_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    command = [sys.executable, "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    together = [mine + yours for mine, yours in zip(first["trained"], second["trained"], strict=True)]
    assert together == epochs(shuffled(batch_size=8), 2)
    assert first["weight"] == second["weight"]


def test_a_rank_that_only_lightning_knows_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as Lightning does where it starts the processes itself
    with pytest.raises(
        stoker.errors.OptionError, match=r"^WORLD_SIZE is 2, but RANK is not set, so this process cannot know its share"
    ):
        shuffled()
    assert shuffled(rank=1, world_size=2).ranks.rank == 1
