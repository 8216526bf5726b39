"""A Lightning `DataModule` of feeds, which are made in each process with its rank."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import Any

from stoker.feed.feed import Feed
from stoker.feed.prefetch import Distributed


def _data_modules() -> tuple[type, ...]:
    """The `LightningDataModule` of the packages in use: Lightning is published twice, and a `Trainer` takes only its own."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if name in sys.modules] or [name for name in names if find_spec(name.partition(".")[0])][:1]
    return tuple(import_module(name).LightningDataModule for name in used or names[:1])


_BASES = _data_modules()


MakeFeed = Callable[..., Feed]
"""Makes a feed for a rank, as a function of `rank` and `world_size`, or of `distributed`: `functools.partial(stoker.Feed, store, view)`."""


class FeedDataModule(*_BASES):  # type: ignore[misc]
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
        self._makers = {"train": train, "val": valid, "test": test, "predict": predict}
        super().__init__()

    @property
    def trainer(self) -> Any:
        """The `Trainer` that uses this module; None before."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        """A trainer leaves out a loop whose loader is the method of its base class, so each loader that is not given becomes that."""
        self._trainer = trainer
        package = type(trainer).__module__.partition(".")[0]
        base = next((base for base in _BASES if base.__module__.startswith(f"{package}.")), _BASES[0])
        for name in (f"{name}_dataloader" for name, make in self._makers.items() if make is None):
            setattr(self, name, MethodType(getattr(base, name), self))

    def _made(self, name: str) -> Any:
        make = self._makers[name]
        if make is None:
            return None
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        is_feed = "distributed" in inspect.signature(make).parameters  # `stoker.Feed`, or a partial of it
        return make(distributed=Distributed(**ranks)) if is_feed else make(**ranks)

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
