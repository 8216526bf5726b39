"""A Lightning `DataModule` of feeds, which are made in each process with its rank."""

from __future__ import annotations

from types import MethodType
from typing import Any, Protocol

from stoker.feed.feed import Feed

try:
    import lightning.pytorch as lightning
except ImportError:
    import pytorch_lightning as lightning


class MakeFeed(Protocol):
    """Makes a feed for a rank; `functools.partial(stoker.Feed, store, view, batch_size=64)` is one."""

    def __call__(self, *, rank: int, world_size: int) -> Feed:
        """The feed of this rank."""


class FeedDataModule(lightning.LightningDataModule):  # type: ignore[misc]
    """Feeds for the loops of a Lightning `Trainer`, on any number of devices.

    Lightning starts processes of its own and gives them ranks, so a feed is made in each of them. It saves the position of its loaders:
    `fit(..., ckpt_path=...)` resumes at the next batch, in the middle of an epoch or at its end.

    Args:
        train: Makes the feed of training.
        valid: Makes the feed of validation; None for none.
        test: Makes the feed of `Trainer.test`.
        predict: Makes the feed of `Trainer.predict`.

    Example:
        >>> from functools import partial
        >>> make = partial(stoker.Feed, store, view, batch_size=64)  # doctest: +SKIP
        >>> data = FeedDataModule(partial(make, order=stoker.Shuffle(seed=0)), valid=make)  # doctest: +SKIP
        >>> lightning.Trainer(max_epochs=2).fit(model, data)  # doctest: +SKIP
    """

    def __init__(
        self, train: MakeFeed, *, valid: MakeFeed | None = None, test: MakeFeed | None = None, predict: MakeFeed | None = None
    ) -> None:
        super().__init__()
        self._makers = {"train": train, "val": valid, "test": test, "predict": predict}
        for name in (name for name, make in self._makers.items() if make is None):
            # Lightning leaves out a loop whose loader is the one of its base class.
            method = f"{name}_dataloader"
            setattr(self, method, MethodType(getattr(lightning.LightningDataModule, method), self))

    def _made(self, name: str) -> Any:
        make = self._makers[name]
        return None if make is None else make(rank=self.trainer.global_rank, world_size=self.trainer.world_size)

    def train_dataloader(self) -> Any:
        """The feed of training, for this rank."""
        return self._made("train")

    def val_dataloader(self) -> Any:
        """The feed of validation, for this rank."""
        return self._made("val")

    def test_dataloader(self) -> Any:
        """The feed of `Trainer.test`, for this rank."""
        return self._made("test")

    def predict_dataloader(self) -> Any:
        """The feed of `Trainer.predict`, for this rank."""
        return self._made("predict")
