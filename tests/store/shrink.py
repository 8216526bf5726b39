"""Small limits: with these, a few dozen rows make many chunks, runs, rounds of merges and journals, as millions do otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.store import PackOptions
from stoker.store.formats.csv import CsvSource
from stoker.store.pack import merge, packer
from stoker.store.pack.sorted_runs import SortedRun


@contextlib.contextmanager
def shrunk(
    *, chunk_bytes: int = 64, run_bytes: int = 256, fan_in: int = 2, journal_bytes: int = 1 << 30, line_bytes: int = 64
) -> Iterator[None]:
    """Pack with tiny parts: blocks of a merge have 16 rows, the fewest there are."""
    lines = CsvSource._lines
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackOptions, "chunk_bytes", property(lambda _: chunk_bytes))
        patch.setattr(PackOptions, "run_bytes", property(lambda _: run_bytes))
        patch.setattr(packer, "FAN_IN", fan_in)
        patch.setattr(packer, "JOURNAL_BYTES", journal_bytes)
        patch.setattr(merge, "RunCursor", _SmallCursor)
        patch.setattr(CsvSource, "_lines", lambda source, start, _: lines(source, start, line_bytes))
        yield


class _SmallCursor(merge.RunCursor):
    def __init__(self, run: SortedRun, block_bytes: int, *more: Any) -> None:
        super().__init__(run, 1, *more)
