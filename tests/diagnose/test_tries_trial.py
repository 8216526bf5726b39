"""A trial: what is seeded, what is measured on a GPU, and how fixes that need one go about it; a pretended GPU is enough."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stoker.diagnose.boundaries import Times
from stoker.diagnose.tries import seeds
from stoker.diagnose.tries.compile import Compile
from stoker.diagnose.tries.graph import Graph
from stoker.diagnose.tries.trial import CHUNKS, TrialSession, peak_bytes
from stoker.errors import TrainError


def drawn() -> list[float]:
    return [random.random(), np.random.random(), torch.rand(1).item(), np.random.default_rng().random()]


def test_all_that_is_drawn_begins_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", np.random.default_rng)  # put back in the end
    original = np.random.default_rng
    assert drawn() != drawn()  # without the guard
    with seeds.kept_seeds():
        seeds.set_seeds()
        first = drawn()
        assert np.random.default_rng().random() != first[-1]  # each generator is another one
        assert np.random.default_rng(5).random() == original(5).random()
        monkeypatch.setattr(np.random, "default_rng", original)
        seeds.set_seeds()
        assert drawn() == first


def test_what_is_drawn_meanwhile_does_not_count() -> None:
    with seeds.kept_seeds():
        before = [random.random(), np.random.random(), torch.rand(1).item()]
    with seeds.kept_seeds():
        with seeds.kept_seeds():
            drawn()
        assert [random.random(), np.random.random(), torch.rand(1).item()] == before


def driven(session: TrialSession, times: list[Times]) -> int:
    plan = session._chunks()
    next(plan)
    for number, one in enumerate(times):
        try:
            plan.send(one)
        except StopIteration:
            return number + 1
    raise AssertionError("it does not end")


def test_steps_of_a_gpu_are_timed_several_between_two_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    session = TrialSession(on_done=lambda: None, fix=None, stretch_seconds=0.0)
    step = Times((0,) * 6, False)
    assert driven(session, [step] * 100) == 4 + 3 * CHUNKS
    assert (len(session.seconds), len(waits)) == (CHUNKS, 2 + CHUNKS)


def test_steps_of_a_gpu_in_which_an_epoch_ends_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    session = TrialSession(on_done=lambda: None, fix=None, stretch_seconds=0.0)
    steps = [Times((0,) * 6, number == 4 + 3) for number in range(100)]
    driven(session, steps)
    assert len(session.seconds) == CHUNKS - 1


def test_memory_of_the_process_is_known() -> None:
    assert (peak_bytes("cpu") or 0) > 10 << 20


def test_a_graph_is_captured_without_the_hooks_that_watch_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def capture(module: nn.Module, samples: tuple[torch.Tensor, ...]) -> None:
        seen.append((dict(module._forward_pre_hooks), [tuple(one.shape) for one in samples]))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    model, calls = nn.Linear(3, 2), []
    model.register_forward_pre_hook(lambda module, args: calls.append(1))
    fix = Graph()
    fix.begin([model], None)
    x = torch.ones(4, 3)
    expected = torch.nn.functional.linear(x, model.weight, model.bias)
    assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)
    assert seen == [({}, [(4, 3)])]  # once, and with no hook in sight
    assert (len(calls), len(model._forward_pre_hooks), fix.used) == (2, 1, True)


def test_a_model_that_is_not_called_with_tensors_alone_has_no_graph() -> None:
    model = nn.Linear(3, 2)
    Graph().begin([model], None)
    with pytest.raises(TrainError, match="tensors alone"):
        model(input=torch.ones(4, 3))


def test_modules_with_weights_are_compiled_and_their_hooks_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def pretend(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", pretend)
    model = nn.Linear(3, 2)
    Compile().begin([model, nn.MSELoss()], None)
    assert compiled == [model.forward]
    frozen = Compile()
    frozen.begin([nn.MSELoss()], None)
    assert not frozen.used
