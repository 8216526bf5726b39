"""The library of the NVIDIA driver: a fake that answers, one that refuses, and the real one where there is a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stoker.watch.counters import Device, open_device


def fake(*, fails: bool = False, reasons: int = 0) -> Any:
    """A library whose functions write numbers, as the real one does."""

    def clock(handle: Any, kind: int, value: Any) -> int:
        value._obj.value = 1980
        return int(fails)

    def why(handle: Any, value: Any) -> int:
        value._obj.value = reasons
        return int(fails)

    def programs(handle: Any, count: Any, entries: Any) -> int:
        count._obj.value = 3
        return int(fails)

    return SimpleNamespace(
        nvmlInit_v2=lambda: int(fails),
        nvmlDeviceGetHandleByUUID=lambda name, handle: 0 if name == b"GPU-aa" else 6,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=why,
        nvmlDeviceGetComputeRunningProcesses_v3=programs,
    )


def test_a_device_answers() -> None:
    device = Device(fake(reasons=0x24 | 0x1), None)
    assert device.clock_mhz() == 1980
    assert device.throttle() == "power limit, temperature"
    assert device.num_programs() == 3
    assert Device(fake(reasons=0x1), None).throttle() is None, "an idle GPU is not throttled"


def test_negative_control_a_library_that_refuses_or_is_old() -> None:
    for device in (Device(fake(fails=True), None), Device(SimpleNamespace(), None)):
        assert (device.clock_mhz(), device.throttle(), device.num_programs()) == (None, None, None)


def test_a_device_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    open_device.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake())
    assert open_device("aa") is not None
    assert open_device("GPU-aa") is not None
    assert open_device("bb") is None
    open_device.cache_clear()


@pytest.mark.gpu
def test_the_library_of_the_driver_answers() -> None:
    torch.ones(1, device="cuda")
    device = open_device(str(torch.cuda.get_device_properties(0).uuid))
    assert device is not None
    assert 100 < (device.clock_mhz() or 0) < 5000
    assert (device.num_programs() or 0) >= 1
