"""Fixes of loaders: what a program gives to `DataLoader` is changed on its way there."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from stoker.diagnose.tries.fix import Fix


class LoaderFix(Fix):
    """A fix of every DataLoader of the program."""

    nothing = "the program makes no DataLoader"

    def install(self) -> None:
        """Change the options of loaders that are made from here on."""
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def changed(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            options = signature.bind(loader, *args, **kwargs).arguments
            options.pop("self")
            self.change(options)
            original(loader, **options)
            self.made(loader)

        self.replace(DataLoader, "__init__", changed)

    def change(self, options: dict[str, Any]) -> None:
        """Change the options of one loader in place; sets `used`, or leaves them as they are and says why in `nothing`."""
        raise NotImplementedError

    def made(self, loader: DataLoader[Any]) -> None:
        """A loader was made."""


def is_map_style(options: dict[str, Any]) -> bool:
    """Whether samples are found by their numbers."""
    return not isinstance(options["dataset"], IterableDataset)
