"""Lightning with a data module of feeds: each rank its own, and a resume in the middle of an epoch."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
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


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    global FeedDataModule, Tiny, lightning, trainer
    lightning = pytest.importorskip("pytorch_lightning")
    from tests.feed.lightning_model import Tiny, trainer

    from stoker.integrations.lightning import FeedDataModule


def shuffled(**options: Any) -> stoker.Feed:
    return window_feed(order=stoker.Shuffle(seed=4), last_batch="short", **options)


def test_a_partial_of_the_feed_gets_the_rank_of_the_trainer(tmp_path: Path) -> None:
    store = stoker.Store.from_arrays(x=[[float(step) for step in range(12)]])
    module = FeedDataModule(partial(stoker.Feed, store, stoker.Segments(2), batch_size=2))
    module.trainer = trainer(tmp_path)
    assert (module.train_dataloader().ranks.rank, module.train_dataloader().ranks.world_size) == (0, 1)


def test_feeds_are_made_with_the_rank_of_the_trainer(tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    def make(**ranks: int) -> stoker.Feed:
        seen.append(ranks)
        return shuffled(**ranks)

    model = Tiny()
    trainer(tmp_path).fit(model, FeedDataModule(make, valid=partial(window_feed, last_batch="short")))
    assert seen == [{"rank": 0, "world_size": 1}]
    assert model.trained == [batch["sample"].tolist() for feed in [shuffled()] for _ in range(2) for batch in feed]
    assert len(model.validated) == 3


def test_the_trainers_of_both_packages_take_it() -> None:
    """Another library may import `lightning` where the user imports `pytorch_lightning`; one test run here does both."""
    code = """
import sys
for name in sys.argv[2:]: __import__(name)
import stoker
from functools import partial
from stoker.integrations import FeedDataModule
from tests.feed.ecosystem import window_feed
module = sys.modules[sys.argv[1]]
class Tiny(module.LightningModule):
    steps = 0
    def training_step(self, batch, index): self.steps += 1
    def validation_step(self, batch, index): raise AssertionError("there is no data to validate on")
    def configure_optimizers(self): return None
model = Tiny()
module.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
               accelerator="cpu").fit(model, FeedDataModule(partial(window_feed, last_batch="short")))
print(model.steps)
"""
    pytest.importorskip("lightning")
    both = ["lightning.pytorch", "pytorch_lightning"]
    for words in ([both[0], *both], [both[1], *both]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1:] == ["5"], (words, done.stderr)


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_a_resumed_fit_ends_like_one_that_was_not_stopped(tmp_path: Path, stop: int) -> None:
    class Stop(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            if trainer.global_step == stop:
                trainer.save_checkpoint(tmp_path / "kept.ckpt")

    whole, rest = Tiny(), Tiny()
    trainer(tmp_path, callbacks=[Stop()]).fit(whole, FeedDataModule(shuffled))
    trainer(tmp_path).fit(rest, FeedDataModule(shuffled), ckpt_path=tmp_path / "kept.ckpt")
    assert rest.trained == whole.trained[stop:]
    assert torch.equal(rest.layer.weight, whole.layer.weight)
