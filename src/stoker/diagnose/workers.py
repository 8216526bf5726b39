"""Worker processes of a DataLoader: how much they make ahead, and when they have nothing to do."""

from __future__ import annotations

import threading
from typing import Any

from torch.utils.data import DataLoader

from stoker.clock import now_ns

PATIENCE_SECONDS = 3.0


def queue_length(loader: DataLoader[Any] | None) -> int:
    """Batches that are made ahead."""
    if loader is None or not loader.num_workers:
        return 0
    return int(loader.num_workers * (loader.prefetch_factor or 2))


def wait_for_workers(iterator: Any) -> None:
    """Return when all batches that were asked for are made (or after some seconds): from then on the workers sleep."""
    queue = getattr(iterator, "_worker_result_queue", None)
    if queue is None:
        return
    begin, pause = now_ns(), threading.Event()
    while now_ns() - begin < PATIENCE_SECONDS * 1e9:
        pinned = getattr(iterator, "_data_queue", queue)
        ready = queue.qsize() + (pinned.qsize() if pinned is not queue else 0)
        early = sum(len(info) > 1 for info in iterator._task_info.values())  # taken off the queue before their turn
        if ready + early >= iterator._tasks_outstanding:
            return
        pause.wait(0.01)
