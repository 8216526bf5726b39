"""Measurements on a device, with a fake one."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.fake_cuda import FakeCuda

from stoker.diagnose.hooks import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PREPARE,
    REST,
    DeviceOnlyStep,
    StepHooks,
    cycles_per_second,
)


def one_step(device: FakeCuda, hooks: StepHooks) -> None:
    for phase, host, busy in ((FORWARD, 4.0, 1.0), (BACKWARD, 4.0, 2.0), (OPTIMIZER, 2.0, 0.5)):
        hooks.enter(phase)
        device.issue(host=host, device=busy)
    hooks.enter(REST)


def asleep_step(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> DeviceOnlyStep:
    device, hooks = FakeCuda(), StepHooks()
    monkeypatch.setattr("stoker.diagnose.hooks.cuda", device)
    hooks.phase = PREPARE
    asleep = DeviceOnlyStep(hooks, seconds, 1e6)
    asleep.begin()
    one_step(device, hooks)
    asleep.end()
    assert hooks.on_phase is None
    return asleep


def test_a_step_that_is_issued_ahead_shows_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issued in 10 ms and run in 3.5: what events around a step in the open would call 10."""
    asleep = asleep_step(monkeypatch, seconds=0.025)
    assert asleep.seconds == pytest.approx(0.0035)
    assert asleep.phases["backward"] == pytest.approx(0.002)
    assert asleep.phases["optimizer"] == pytest.approx(0.0005)


def test_negative_control_without_sleep_the_host_is_in_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asleep_step(monkeypatch, seconds=0.0).seconds > 0.009


@pytest.mark.gpu
def test_sleep_ahead_on_a_real_device() -> None:
    hooks = StepHooks()
    value = torch.ones(256, 256, device="cuda")
    value = value @ value / 256  # the first matmul of a process loads a library, longer than the device sleeps here
    asleep = DeviceOnlyStep(hooks, 0.05, cycles_per_second())
    asleep.begin()
    for _ in range(10):
        value = value @ value / 256
    asleep.end()
    assert 0 < asleep.seconds < 0.05
