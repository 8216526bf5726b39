"""`transformers.Trainer` with the batches of feeds: same arguments, same callbacks, and a resume that is exact."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from stoker.errors import OptionError
from stoker.feed.feed import Feed


class FeedTrainer(transformers.Trainer):
    """A `transformers.Trainer` that takes its batches from feeds instead of datasets.

    Batches come in the order of the feed. The position of the feed is part of every checkpoint, so `train(resume_from_checkpoint=...)`
    continues with the next batch: no batch is skipped by reading it, and the number of ranks may change.

    Args:
        train_feed: Batches to train on. Its entries are the arguments of the model.
        eval_feed: Batches for `evaluate`.
        *arguments: Those of `transformers.Trainer`.
        **options: Those of `transformers.Trainer`.

    Raises:
        OptionError: A dataset is given beside a feed, or a checkpoint has no position of the feed.

    Example:
        >>> trainer = FeedTrainer(model=model, args=arguments, train_feed=feed)  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True)  # doctest: +SKIP
    """

    def __init__(self, *arguments: Any, train_feed: Feed | None = None, eval_feed: Feed | None = None, **options: Any) -> None:
        for feed, name in ((train_feed, "train"), (eval_feed, "eval")):
            if feed is not None and options.get(f"{name}_dataset") is not None:
                raise OptionError(f"{name}_feed and {name}_dataset are given. Use one of them.", parameter=f"{name}_feed")
        super().__init__(*arguments, **options)
        self.train_feed, self.eval_feed = train_feed, eval_feed
        if train_feed is not None:
            self.args.ignore_data_skip = True  # the feed itself begins at its position
            self.add_callback(FeedPosition(train_feed))

    def get_train_dataloader(self) -> Any:
        """The feed, or what `transformers.Trainer` makes of the dataset."""
        return super().get_train_dataloader() if self.train_feed is None else self.train_feed

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The feed, unless another dataset is asked for."""
        if self.eval_feed is None or eval_dataset is not None:
            return super().get_eval_dataloader(eval_dataset)
        return self.eval_feed


class FeedPosition(transformers.TrainerCallback, ExportableState):
    """Keeps the position of a feed in `trainer_state.json` of each checkpoint, and returns to it."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"args": {}, "attributes": {"position": self.feed.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Go to the position of the checkpoint that the trainer resumes from."""
        if not state.global_step:
            return
        kept = state.stateful_callbacks.get(type(self).__name__)
        if kept is None:
            raise OptionError(
                f"the checkpoint of step {state.global_step:,} has no position of a feed. Resume it with the trainer that wrote it, "
                f"or begin a new run."
            )
        self.feed.load_state_dict(kept["attributes"]["position"])
