"""Threads of torch, for a block. Their number decides bits of sums, so it is stated and never measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def using(count: int) -> Iterator[None]:
    """Use `count` threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
