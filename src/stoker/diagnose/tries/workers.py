"""Workers: processes that make batches ahead."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.diagnose.tries.loaders import LoaderFix, is_map_style


class Workers(LoaderFix):
    """`num_workers`, kept between epochs; for datasets whose samples are found by number, since others would come several times."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._kept_before = False
        self._drawing: list[Any] = []
        """Loaders that drew a seed for each epoch."""

    def install(self) -> None:
        """Change loaders; and draw for each epoch what a loader without workers draws.

        Workers that are kept get their seed once. Without them each epoch draws one, and all that is drawn after that differs.
        """
        super().install()
        original = _MultiProcessingDataLoaderIter._reset

        @functools.wraps(original)
        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter and any(loader is one for one in self._drawing):
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            original(iterator, loader, first_iter)

        self.replace(_MultiProcessingDataLoaderIter, "_reset", reset)

    def change(self, options: dict[str, Any]) -> None:
        """Set the number of workers."""
        if not is_map_style(options):
            self.nothing = "the dataset is an IterableDataset: each worker would give all of its samples"
            return
        self._kept_before = bool(options.get("persistent_workers"))
        options["num_workers"] = self.value or 2
        options["persistent_workers"] = True
        self.used = True

    def made(self, loader: DataLoader[Any]) -> None:
        """Remember who drew a seed for each epoch."""
        if not self._kept_before:
            self._drawing.append(loader)
