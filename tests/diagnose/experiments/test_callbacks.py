"""Callbacks and hooks of a step are skipped, and put back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.diagnose.experiments.samples import StepNumber

from stoker.diagnose.experiments.callbacks import WithoutCallbacks


def test_forward_hooks_are_skipped_and_put_back(clock: StepNumber) -> None:
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


def test_callbacks_of_a_step_are_skipped_and_put_back(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_hooks_of_a_module_are_skipped_in_a_step_only(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_program_without_callbacks_has_nothing_to_skip(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.diagnose.experiments.callbacks.FRAMEWORKS", ())
    callbacks = WithoutCallbacks(clock)
    callbacks.on([torch.nn.Linear(2, 2)], None, [])
    callbacks.remove()
    assert not callbacks.used
