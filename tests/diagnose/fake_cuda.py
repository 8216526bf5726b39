"""A fake of `torch.cuda` that keeps the time at which a device would have done its work."""

from __future__ import annotations


class FakeCuda:
    """A queue: the host runs ahead of it, unless it waits. Times in milliseconds; one cycle is a microsecond."""

    def __init__(self) -> None:
        self.host = 0.0
        self.queue = 0.0
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = max(device.queue, device.host)

            def synchronize(self) -> None:
                device.host = max(device.host, self.at)

            def elapsed_time(self, later: Event) -> float:
                return later.at - self.at

        self.Event = Event

    def issue(self, *, host: float, device: float) -> None:
        self.host += host
        self.queue = max(self.queue, self.host) + device

    def _sleep(self, cycles: int) -> None:
        self.queue = max(self.queue, self.host) + cycles / 1000

    def synchronize(self) -> None:
        self.host = max(self.host, self.queue)
