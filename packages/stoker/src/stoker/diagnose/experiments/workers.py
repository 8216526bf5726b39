"""The fix `workers`: another number of worker processes of the DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from stoker.diagnose.advice import workers_to_use
from stoker.diagnose.division import divide
from stoker.diagnose.experiments.base import LoaderFix
from stoker.diagnose.experiments.data import OtherBatches
from stoker.diagnose.loops import batches_of_workers, length_of
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.session import Session

MIN_EPOCH_QUEUES = 4  # batches of an epoch, in queues of workers, from which the gain by workers is measured


class Workers(LoaderFix):
    """`num_workers` with persistent workers, for map-style datasets: each worker would give all samples of an iterable one."""

    def _change(self, options: dict[str, Any]) -> None:
        if isinstance(options["dataset"], IterableDataset):
            self.unused_reason = "the dataset is an IterableDataset: each worker would give all of its samples"
            return
        workers = 2 if self.value is None else self.value
        options.update(num_workers=workers, persistent_workers=workers > 0)
        if not workers:
            options.pop("prefetch_factor", None)
        self.used = True


def batches_by_workers(session: Session, measured: Measurements) -> Iterator[OtherBatches]:
    """Yield the batches that each number of workers that may gain (0: none) makes for the training loop."""
    loader, recorder = session.sources.training.iterable if session.sources.training is not None else None, session.recorder
    if type(loader) is not DataLoader or not session.can_repeat:
        return  # others may change the batches of their loader
    in_process, wanted = recorder.batch_seconds, workers_to_use(measured, divide(measured))
    numbers = [0] if loader.num_workers and in_process is not None and in_process < measured.loop.median else []
    # Each worker would give all samples of an iterable dataset. A queue fills at the start of each epoch.
    if not isinstance(loader.dataset, IterableDataset) and (length_of(loader) or 0) >= MIN_EPOCH_QUEUES * 2 * wanted:
        numbers += [wanted] if wanted != loader.num_workers else []
    for workers in numbers:
        batches = batches_of_workers(loader, workers)
        try:
            next(batches)
        except Exception as error:  # the user's: a dataset may not work in a worker
            recorder.notes.append(f"the gain of workers could not be measured: {type(error).__name__}: {error}")
        else:
            yield OtherBatches(session, batches, workers=workers)
