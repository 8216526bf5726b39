"""Clock and programs of an NVIDIA GPU, asked of the driver's own library (libnvidia-ml) through ctypes.

The library is part of every driver, so no package is needed. Where it is missing, or refuses, the answer is None.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

SM_CLOCK = 1
MAX_PROGRAMS = 64
THROTTLE = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "GPUs in step",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Reasons that are worth a word. An idle GPU and a clock that a program has set are none."""


class _Program(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Device:
    """One GPU."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        function, value = getattr(self._library, name, None), kind()
        if function is None or function(self._handle, *arguments, ctypes.byref(value)):
            return None
        return int(value.value)

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors."""
        return self._number("nvmlDeviceGetClockInfo", SM_CLOCK)

    def throttle(self) -> str | None:
        """Why the clock is lower than it could be; None if it is not."""
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        return ", ".join(word for bit, word in THROTTLE.items() if reasons & bit) or None

    def num_programs(self) -> int | None:
        """The number of programs that compute on the GPU, this one included."""
        function = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        count, programs = ctypes.c_uint(MAX_PROGRAMS), (_Program * MAX_PROGRAMS)()
        if function is None or function(self._handle, ctypes.byref(count), programs):
            return None
        return count.value


@functools.cache
def open_device(uuid: str) -> Device | None:
    """The GPU with this UUID, as torch names it; None where the driver's library does not answer."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        return None
    return Device(library, handle)
