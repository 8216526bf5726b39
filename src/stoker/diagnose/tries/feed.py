"""Feed: each batch gathered at once from columns, in place of sample by sample. The order stays that of the program's sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, default_collate

from stoker.diagnose.tries.columns import Collate, Columns, columns_like, columns_of
from stoker.diagnose.tries.loaders import LoaderFix, is_map_style
from stoker.diagnose.tries.seeds import kept_seeds


class Gathered(LoaderFix):
    """Datasets whose samples are rows or windows of arrays, or are few enough to be read once before the training."""

    nothing = "the program makes no DataLoader of samples that are found by number"

    def change(self, options: dict[str, Any]) -> None:
        """Put columns in place of the dataset."""
        dataset = options["dataset"]
        if isinstance(dataset, Columnar):
            return
        if not is_map_style(options) or not hasattr(dataset, "__len__"):
            self.nothing = "the samples of the dataset are not found by number"
        elif options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
            gathers = isinstance(options.get("sampler"), BatchSampler)
            self.nothing = "the dataset makes whole batches " + ("already" if gathers else "itself")
        else:
            columnar = Columnar(dataset, options.get("collate_fn") or default_collate, self)
            options.update(dataset=columnar, collate_fn=columnar.collate, num_workers=0)
            for name in ("persistent_workers", "prefetch_factor", "worker_init_fn", "multiprocessing_context"):
                options.pop(name, None)


def gathering(batches: Sequence[Any], rows: int, size: int) -> Iterator[Any] | None:
    """Batches of so many samples like these, each gathered at once from columns of so many rows; None where there are none."""
    columns = columns_like(batches, rows) if batches else None
    count = min((len(column.values) for column in columns.columns), default=0) if columns is not None else 0
    if columns is None or count < size:
        return None
    loader = DataLoader(_Gathering(columns, count), size, shuffle=True, drop_last=True, collate_fn=_as_it_is)
    return chain.from_iterable(repeat(loader))


class _Gathering(Dataset[Any]):
    """A dataset of nothing but columns."""

    def __init__(self, columns: Columns, count: int) -> None:
        self._columns, self._count = columns, count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, numbers: list[int]) -> Any:
        return self._columns.gather(numbers)


def _as_it_is(batch: Any) -> Any:
    return batch


class Columnar(Dataset[Any]):
    """A dataset that gives batches: from columns, or, where it has none, as before."""

    def __init__(self, dataset: Any, collate: Collate, fix: Gathered) -> None:
        self._dataset = dataset
        self._collate = collate
        self._fix = fix
        self._columns: Any = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]

    def __getitems__(self, numbers: list[int]) -> Any:
        """The batch of these samples; columns are made when the first is asked for."""
        if self._columns is None:
            with kept_seeds():
                self._columns = columns_of(self._dataset, self._collate)
            if isinstance(self._columns, str):
                self._fix.nothing = self._columns
            else:
                self._fix.used = True
        if isinstance(self._columns, str):
            return self._collate([self._dataset[number] for number in numbers])
        return self._columns.gather(numbers)

    def collate(self, batch: Any) -> Any:
        """Nothing is left to do."""
        return batch
