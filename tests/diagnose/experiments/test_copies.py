"""Uploads take no time, and other copies are made."""

from __future__ import annotations

import torch
from tests.diagnose.experiments.samples import StepNumber

from stoker.diagnose.experiments.copies import WithoutCopies


def test_an_upload_returns_the_tensor_of_the_step_before(clock: StepNumber) -> None:
    copies = WithoutCopies(clock)

    def upload() -> torch.Tensor:
        return torch.zeros(3).to("meta")

    copies.install()
    first = upload()
    clock.step += 1
    assert upload() is first
    copies.remove()
    assert upload() is not first


def test_a_copy_that_stays_on_its_device_is_made(clock: StepNumber) -> None:
    copies = WithoutCopies(clock)
    copies.install()
    values = []
    for value in (1.0, 2.0):
        values.append(torch.tensor(value).to(torch.float64).item())
        clock.step += 1
    copies.remove()
    assert values == [1.0, 2.0]
    assert not copies.used


def test_a_copy_that_needs_a_gradient_is_made(clock: StepNumber) -> None:
    copies = WithoutCopies(clock)
    weight = torch.zeros(3, requires_grad=True)
    copies.install()
    first = weight.to("meta")
    clock.step += 1
    second = weight.to("meta")
    copies.remove()
    assert first is not second


def test_uploads_into_a_tensor_and_of_lists_take_no_time(clock: StepNumber) -> None:
    copies, target = WithoutCopies(clock), torch.empty(3, device="meta")
    host = torch.zeros(3)
    copies.install()
    made = []
    for _ in range(2):
        assert target.copy_(torch.ones(3)) is target
        host.copy_(torch.ones(3))
        made.append([torch.tensor([1.0, 2.0], device="meta"), torch.tensor([1.0, 2.0])])
        clock.step += 1
    copies.remove()
    assert made[0][0] is made[1][0]
    assert made[0][1] is not made[1][1]
    assert host.tolist() == [1.0] * 3, "no upload: it is made"
    assert copies.used
