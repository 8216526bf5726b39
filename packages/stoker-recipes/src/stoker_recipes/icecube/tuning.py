"""The batch size of a run, chosen by throughput: `stoker tune batch icecube`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import torch

import stoker
from stoker.extend import check_device
from stoker.tune import BatchSizeChoice, batch_size, step_of
from stoker_recipes.icecube.batches import EventBatch
from stoker_recipes.icecube.feed import EventFeed
from stoker_recipes.icecube.settings import IceCubeSettings
from stoker_recipes.icecube.training import make_feed, make_model, make_order, make_trainer
from stoker_recipes.run_folder import make_settings

_UPDATES = 1000  # of the schedule; its length does not change the time of a step


def tune_batch_size(
    data: str | os.PathLike[str],
    *,
    device: str | None = None,
    largest: int | None = None,
    tolerance: float = 0.05,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> BatchSizeChoice:
    """Measure steps of a run with batches of several sizes, and choose the smallest that loses no throughput.

    Args:
        data: A store that `pack_events` or `stoker pack --recipe icecube` made.
        device: Default: a GPU if there is one. Steps are CUDA graphs there, as in a run.
        largest: The largest size to try.
        tolerance: How much slower than the best size the choice may be.
        report: Gets a line per measured size.
        **options: Fields of `IceCubeSettings`, such as `size="19m"`.

    Returns:
        The choice, with all sizes that were measured.

    Raises:
        OptionError: An option is invalid, or not even one event fits into memory.

    Example:
        >>> import tempfile
        >>> from stoker_recipes.icecube import make_events, pack_events
        >>> with tempfile.TemporaryDirectory() as there:
        ...     _ = pack_events(make_events(f"{there}/icecube", files=1, events=40), f"{there}/ice.stoker")
        ...     choice = tune_batch_size(f"{there}/ice.stoker", size="tiny", largest=2, device="cpu")
        >>> choice.size in (1, 2)
        True
    """
    settings = make_settings(IceCubeSettings, {"data": os.fspath(data), **options})
    place = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    store = stoker.open(settings.data)

    def batches(size: int) -> EventFeed:
        sized = msgspec.structs.replace(settings, batch_size=size)
        return make_feed(store, sized, where=settings.where, order=make_order(settings), device=place)

    def make_batch(size: int) -> EventBatch:
        return next(iter(batches(size)))

    def make_step() -> Callable[[Any], None]:
        model = make_model(settings, num_batches=_UPDATES).to(place)
        return step_of(make_trainer(settings, store, model, total=_UPDATES, device=place, progress=False), [])

    return batch_size(
        make_step, make_batch, device=place, tolerance=tolerance, largest=largest, num_samples=batches(1).num_samples, report=report,
    )  # fmt: skip
