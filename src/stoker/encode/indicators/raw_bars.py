"""Raw bars: files that are packed beside the store that is to be made of them, in a folder that is removed when it is there.

Reading, grouping, the check of times and the bound on memory are those of a pack; one that was stopped goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker import files
from stoker.store.pack import pack
from stoker.store.store import Store


@contextlib.contextmanager
def packed_bars(source: Sequence[str], target: Path, **options: Any) -> Iterator[Store]:
    """A store of the bars in `source` for the time of the block; `options` are those of `pack`."""
    with files.scratch_folder(files.beside(target, "{}.bars")) as folder:
        # What a killed run left there is of this command's own making, so it may be replaced.
        store = pack(list(source), folder / "store", replace=True, **options)
        try:
            yield store
        except BaseException:  # Ctrl-C too: behind the pack there is nothing left to resume
            files.remove_scratch(folder)
            raise
