"""What a step consists of, counted while it runs within the user's loop."""

from __future__ import annotations

from stoker.diagnose.measurements import Device, Work


class Counted:
    """Counts from `begin` to `end`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def begin(self) -> None:
        """The step begins."""

    def end(self) -> Work | None:
        """The step has ended."""
        return None
