"""Measurements on a device, with a fake one."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.diagnose.fake_cuda import FakeCuda

from stoker.diagnose.hooks import (
    BACKWARD,
    CALIBRATION_CYCLES,
    FORWARD,
    OPTIMIZER,
    PREPARE,
    REST,
    DeviceOnlyStep,
    StepHooks,
    StepMarks,
    SyncFinder,
    cycles_per_second,
)


def one_step(device: FakeCuda, hooks: StepHooks, *, reads_loss: bool = False) -> None:
    for phase, host, busy in ((FORWARD, 4.0, 1.0), (BACKWARD, 4.0, 2.0), (OPTIMIZER, 2.0, 0.5)):
        hooks.enter(phase)
        device.issue(host=host, device=busy)
    hooks.enter(REST)
    if reads_loss:
        device.synchronize()


def asleep_step(*, seconds: float, reads_loss: bool = False) -> DeviceOnlyStep:
    device, hooks = FakeCuda(), StepHooks()
    hooks.phase = PREPARE
    asleep = DeviceOnlyStep(hooks, seconds, 1e6, cuda=device)
    asleep.begin()
    one_step(device, hooks, reads_loss=reads_loss)
    asleep.end()
    assert hooks.on_phase is None
    return asleep


def test_a_step_that_is_issued_ahead_shows_the_device_alone() -> None:
    """Issued in 10 ms and run in 3.5: what events around a step in the open would call 10."""
    asleep = asleep_step(seconds=0.025)
    assert asleep.seconds == pytest.approx(0.0035)
    assert asleep.phases["backward"] == pytest.approx(0.002)
    assert asleep.phases["optimizer"] == pytest.approx(0.0005)
    assert not asleep.blocked


def test_negative_control_without_sleep_the_host_is_in_the_times() -> None:
    assert asleep_step(seconds=0.0).seconds > 0.009


def test_a_step_that_waits_for_the_device_is_seen() -> None:
    assert asleep_step(seconds=0.025, reads_loss=True).blocked


def test_marks_report_whole_steps_only() -> None:
    device = FakeCuda()
    marks = StepMarks(cuda=device)
    for whole in (True, True, False, True):
        device.issue(host=1.0, device=5.0 if whole else 500.0)
        marks.add(counted=whole)
    assert marks.seconds() == pytest.approx([0.006, 0.005, 0.005])


def test_the_clock_of_sleep_is_calibrated() -> None:
    assert cycles_per_second(FakeCuda()) == pytest.approx(1e6)
    assert CALIBRATION_CYCLES / 1e6 == 20.0


def test_a_wait_is_blamed_on_the_users_line() -> None:
    device = FakeCuda()
    waits = SyncFinder(cuda=device)
    with warnings.catch_warnings(record=True) as others:
        for _ in range(2):
            waits.begin()
            assert device.mode == "warn"
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
            waits.end()
    assert [str(one.message) for one in others] == ["something else"] * 2
    assert device.mode == 0
    assert [(one.count, one.place.function if one.place else None) for one in waits.syncs()] == [
        (1.0, "test_a_wait_is_blamed_on_the_users_line"),
        (1.0, "test_a_wait_is_blamed_on_the_users_line"),
    ]


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
    assert not asleep.blocked
    assert 0 < asleep.seconds < 0.05
