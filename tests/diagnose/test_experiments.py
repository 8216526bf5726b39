"""Suspects are removed from a running program, and put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from stoker.diagnose import experiments
from stoker.diagnose.experiments import EXPERIMENTS, StaleCalls, WithoutAll, WithoutCallbacks, WithoutCopies, WithoutReads


class Clock:
    """The number of the current step."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> int:
        return self.step


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reads(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[WithoutReads]:
    """WithoutReads of the CPU's tensors, as there may be no GPU."""
    monkeypatch.setattr(WithoutReads, "device", "cpu")
    experiment = WithoutReads(clock)
    yield experiment
    experiment.remove()


def read_twice(first: float, second: float) -> list[float]:
    return [torch.tensor(value).item() for value in (first, second)]


def test_a_read_gives_the_value_of_the_same_call_one_step_before(reads: WithoutReads, clock: Clock) -> None:
    reads.install()
    assert read_twice(1.0, 2.0) == [1.0, 2.0]
    clock.step += 1
    assert read_twice(3.0, 4.0) == [1.0, 2.0]
    assert reads.used


def test_after_it_is_removed_values_are_fresh(reads: WithoutReads, clock: Clock) -> None:
    originals = {name: torch.Tensor.__dict__.get(name) for name in WithoutReads.methods}
    reads.install()
    read_twice(1.0, 2.0)
    reads.remove()
    assert {name: torch.Tensor.__dict__.get(name) for name in WithoutReads.methods} == originals
    assert read_twice(3.0, 4.0) == [3.0, 4.0]


@pytest.mark.parametrize("method", experiments.READS)
def test_every_way_to_read_a_value_is_removed(reads: WithoutReads, clock: Clock, method: str) -> None:
    def read(value: int) -> Any:
        return getattr(torch.tensor(value), method)()

    fresh = read(3)
    reads.install()
    read(5)
    clock.step += 1
    stale = read(3)
    if method == "cpu":  # the tensor is on the CPU already: nothing was read
        assert torch.equal(stale, fresh)
    else:
        assert stale == read(5)


def test_a_tensor_of_another_shape_or_type_is_another_call(reads: WithoutReads, clock: Clock) -> None:
    reads.install()
    values = []
    for tensor in (torch.tensor([1, 2]), torch.tensor([1, 2, 3]), torch.tensor([1.5, 2.5])):
        values.append(tensor.tolist())
        clock.step += 1
    assert values == [[1, 2], [1, 2, 3], [1.5, 2.5]]


def test_an_upload_returns_the_tensor_of_the_step_before(clock: Clock) -> None:
    copies = WithoutCopies(clock)

    def upload() -> torch.Tensor:
        return torch.zeros(3).to("meta")

    copies.install()
    first = upload()
    clock.step += 1
    assert upload() is first
    copies.remove()
    assert upload() is not first


def test_a_copy_that_stays_on_its_device_is_made(clock: Clock) -> None:
    copies = WithoutCopies(clock)
    copies.install()
    values = []
    for value in (1.0, 2.0):
        values.append(torch.tensor(value).to(torch.float64).item())
        clock.step += 1
    copies.remove()
    assert values == [1.0, 2.0]
    assert not copies.used


def test_a_copy_that_needs_a_gradient_is_made(clock: Clock) -> None:
    copies = WithoutCopies(clock)
    weight = torch.zeros(3, requires_grad=True)
    copies.install()
    first = weight.to("meta")
    clock.step += 1
    second = weight.to("meta")
    copies.remove()
    assert first is not second


def test_no_more_than_a_gigabyte_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "MAX_KEPT_BYTES", 100)
    copies = WithoutCopies(clock)
    copies.install()
    small, large = torch.zeros(10), torch.zeros(100)
    kept = []
    for _ in range(2):
        kept.append([tensor.to("meta") for tensor in (small, large)])
        clock.step += 1
    copies.remove()
    assert kept[0][0] is kept[1][0]
    assert kept[0][1] is not kept[1][1]


def test_forward_hooks_are_skipped_and_put_back(clock: Clock) -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model(torch.zeros(1, 2))
    callbacks = WithoutCallbacks(clock)
    callbacks.on([model], None, [])
    model(torch.zeros(1, 2))
    assert (len(seen), callbacks.used) == (1, True)
    callbacks.remove()
    model(torch.zeros(1, 2))
    assert len(seen) == 2


def test_callbacks_of_a_step_are_skipped_and_put_back(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in transformers: callbacks return the control of the loop, and one of them decides what it does next."""
    called: list[str] = []

    class Own:
        def event(self, event: str) -> None:
            called.append(f"{type(self).__name__} {event}")

    class DefaultFlowCallback(Own):
        """The loop needs this one."""

    class CallbackHandler:
        def __init__(self) -> None:
            self.callbacks = [DefaultFlowCallback(), Own()]

        def call_event(self, event: str, control: str) -> str:
            for callback in self.callbacks:
                callback.event(event)
            return control

    module: Any = ModuleType("transformers.trainer_callback")
    module.CallbackHandler = CallbackHandler
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", module)
    callbacks, handler = WithoutCallbacks(clock), CallbackHandler()
    callbacks.on([], None, [])
    assert [handler.call_event(event, "control") for event in ("on_step_end", "on_epoch_end")] == ["control", "control"]
    assert called == ["DefaultFlowCallback on_step_end", "DefaultFlowCallback on_epoch_end", "Own on_epoch_end"]
    assert callbacks.used
    callbacks.remove()
    called.clear()
    handler.call_event("on_step_end", "control")
    assert called == ["DefaultFlowCallback on_step_end", "Own on_step_end"]


def test_hooks_of_a_module_are_skipped_in_a_step_only(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    module: Any = ModuleType("lightning.pytorch.trainer.call")
    module._call_lightning_module_hook = lambda trainer, name: called.append(name)
    monkeypatch.setitem(sys.modules, "lightning.pytorch.trainer.call", module)
    callbacks = WithoutCallbacks(clock)
    callbacks.on([], None, [])
    for name in ("on_train_batch_end", "training_step", "on_train_epoch_end"):
        module._call_lightning_module_hook("trainer", name)
    callbacks.remove()
    assert called == ["training_step", "on_train_epoch_end"]


def test_uploads_into_a_tensor_and_of_lists_take_no_time(clock: Clock) -> None:
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


def test_a_wait_for_the_gpu_takes_no_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    reads = WithoutReads(clock)
    reads.install()
    torch.cuda.synchronize()
    reads.remove()
    assert reads.used
    assert waits == []
    torch.cuda.synchronize()
    assert waits == [1]


def test_a_program_without_callbacks_has_nothing_to_skip(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "FRAMEWORKS", ())
    callbacks = WithoutCallbacks(clock)
    callbacks.on([torch.nn.Linear(2, 2)], None, [])
    callbacks.remove()
    assert not callbacks.used


def test_everything_leaves_no_patch(clock: Clock) -> None:
    names = {*WithoutReads.methods, *WithoutCopies.methods}
    before = {name: torch.Tensor.__dict__.get(name) for name in names}
    everything = WithoutAll(clock)
    for _ in range(3):  # it is switched on in several windows
        assert everything.on([torch.nn.Linear(2, 2)], None, ["batch"]) == ["batch"]
        assert {name: torch.Tensor.__dict__.get(name) for name in names} != before
        everything.remove()
        assert {name: torch.Tensor.__dict__.get(name) for name in names} == before


def test_the_registry_names_every_experiment() -> None:
    assert set(EXPERIMENTS.values()) == {*WithoutCallbacks.__mro__[1].__subclasses__(), *StaleCalls.__subclasses__()} - {StaleCalls}
