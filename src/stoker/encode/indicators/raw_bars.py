"""Raw bars: files that are packed beside the store that is to be made of them, and removed when it is there.

Reading, grouping, the check of times and the bound on memory are those of a pack; one that was stopped goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker import files
from stoker.errors import OptionError
from stoker.store.pack import pack
from stoker.store.store import MANIFEST_NAME, Store


@contextlib.contextmanager
def packed_bars(source: Sequence[str], target: Path, **options: Any) -> Iterator[Store]:
    """A store of the bars in `source` for the time of the block; `options` are those of `pack`."""
    folder = target.with_name(target.name + ".bars")
    if (folder / MANIFEST_NAME).exists():
        raise OptionError(f"{folder} is in the way: give it as the source if it holds these bars, or remove it.")
    store = pack(list(source), folder, **options)
    try:
        yield store
    finally:
        files.remove_folder(folder)
