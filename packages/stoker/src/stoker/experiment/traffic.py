"""What a training run asks of object storage: a line with requests and bytes after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker._text import readable_bytes
from stoker.store.remote import RemoteStore
from stoker.store.store import Store
from stoker.train.callbacks import CallbackReport


class _Traffic:
    def __init__(self, stores: Sequence[RemoteStore], report: Callable[[str], None]) -> None:
        self._stores = stores
        self._report = report
        self._before = [store.traffic for store in stores]

    def on_epoch_end(self, report: CallbackReport) -> None:
        """Say what the epoch has cost."""
        now = [store.traffic for store in self._stores]
        for store, one, before in zip(self._stores, now, self._before, strict=True):
            used = one - before
            self._report(
                f"  storage    epoch {report.epoch}: {used.requests:,} requests ({used.retries:,} repeated), "
                f"{readable_bytes(used.bytes_read)} read from {store.name}"
            )
        self._before = now


def report_traffic(stores: Sequence[Store], report: Callable[[str], None]) -> tuple[_Traffic, ...]:
    """A callback of the trainer that reports the traffic of remote stores, if there are any."""
    remote = [store for store in stores if isinstance(store, RemoteStore)]
    return (_Traffic(remote, report),) if remote else ()
