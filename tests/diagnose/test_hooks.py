"""Phases of a step, by a clock that ticks only when the program says so."""

from __future__ import annotations

import concurrent.futures
import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.diagnose.clock import MS, Clock
from tests.diagnose.fake_cuda import FakeCuda

from stoker.diagnose import hooks as module
from stoker.diagnose.hooks import (
    BACKWARD,
    FORWARD,
    NAMES,
    NEXT,
    OPTIMIZER,
    PREPARE,
    REST,
    BeforeForward,
    DeviceOnlyStep,
    StepHooks,
    cycles_per_second,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now_ns", clock)
    return clock


@pytest.fixture
def listening(clock: Clock) -> Iterator[StepHooks]:
    hooks = StepHooks()
    hooks.install()
    yield hooks
    hooks.remove()


class Net(torch.nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.tick(3)
        return self.inner(x).sum()


class Sgd(torch.optim.SGD):
    clock: Clock

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        self.clock.tick(7)
        return None


def made(clock: Clock) -> tuple[Net, Sgd]:
    net = Net(clock)
    optimizer = Sgd(net.parameters(), lr=0.1)
    optimizer.clock = clock
    return net, optimizer


def by_name(hooks: StepHooks) -> dict[str, int]:
    return {name: spent // MS for name, spent in zip(NAMES, hooks.end_step().phases_ns, strict=True) if spent}


def find(hooks: StepHooks, net: Net) -> None:
    hooks.find_roots()
    net(torch.ones(1, 2))
    hooks.keep_roots()
    hooks.end_step()


def one_step(hooks: StepHooks, clock: Clock, net: Net, optimizer: Sgd) -> None:
    hooks.enter(NEXT)
    clock.tick(1)
    hooks.enter(PREPARE)
    clock.tick(2)
    loss = net(torch.ones(1, 2))
    clock.tick(4)
    loss.register_hook(lambda _: clock.tick(5))
    loss.backward()
    optimizer.step()
    clock.tick(11)


def test_each_phase_gets_its_own_time(listening: StepHooks, clock: Clock) -> None:
    net, optimizer = made(clock)
    find(listening, net)
    one_step(listening, clock, net, optimizer)
    assert listening.stepped
    assert by_name(listening) == {"next": 1, "prepare": 2, "forward": 7, "backward": 5, "optimizer": 7, "rest": 11}
    assert not listening.stepped
    assert [float(loss) for loss in listening.losses] == [pytest.approx(float(net(torch.ones(1, 2)).detach()), abs=10)]


@pytest.mark.parametrize("same_batch", [True, False])
def test_what_runs_between_the_backward_passes_of_a_batch_is_a_part_of_its_gradients(
    listening: StepHooks, clock: Clock, monkeypatch: pytest.MonkeyPatch, same_batch: bool
) -> None:
    """Per-sample clipping: neither the update nor code after it. Between batches, loops do other things."""
    net, optimizer = made(clock)
    listening.pause()
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda weights, norm: clock.tick(20))
    listening.unpause()
    find(listening, net)
    for _ in range(3):
        if not same_batch:
            listening.enter(PREPARE)
            clock.tick(1)
        net(torch.ones(1, 2)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        clock.tick(4)
    optimizer.step()
    phases = by_name(listening)
    assert {name: phases.get(name, 0) for name in ("backward", "optimizer", "rest")} == (
        {"backward": 2 * 24, "optimizer": 20 + 7, "rest": 4} if same_batch else {"backward": 0, "optimizer": 60 + 7, "rest": 12}
    )
    net(torch.ones(1, 2)).backward()
    assert by_name(listening).keys() == {"forward"}, "the update has ended"


def test_accumulated_batches_are_one_step(listening: StepHooks, clock: Clock) -> None:
    net, optimizer = made(clock)
    find(listening, net)
    for _ in range(2):
        listening.enter(NEXT)
        clock.tick(1)
        listening.enter(PREPARE)
        net(torch.ones(1, 2)).backward()
    optimizer.step()
    assert by_name(listening) == {"next": 2, "forward": 6, "optimizer": 7}


def test_optimizers_that_step_within_the_backward_pass_are_one_step(listening: StepHooks, clock: Clock) -> None:
    net = Net(clock)
    optimizers = {}
    for weight in net.parameters():
        optimizers[weight] = Sgd([weight], lr=0.1)
        optimizers[weight].clock = clock
        weight.register_post_accumulate_grad_hook(lambda one: optimizers[one].step())
    for step in range(1, 4):
        net(torch.ones(1, 2)).backward()
        assert listening.steps == step
        assert by_name(listening)["optimizer"] == 14


def test_a_closure_is_not_taken_for_the_optimizer(listening: StepHooks, clock: Clock) -> None:
    """Lightning runs forward and backward within the step of the optimizer."""
    net, optimizer = made(clock)
    find(listening, net)

    def closure() -> None:
        loss = net(torch.ones(1, 2))
        loss.register_hook(lambda _: clock.tick(5))
        loss.backward()

    optimizer.step(closure)
    assert by_name(listening) == {"forward": 3, "backward": 5, "optimizer": 7}
    optimizer.step(closure=closure)
    assert by_name(listening) == {"forward": 3, "backward": 5, "optimizer": 7}


def test_inspecting_the_model_after_the_step_is_not_a_forward_pass(listening: StepHooks, clock: Clock) -> None:
    net, optimizer = made(clock)
    find(listening, net)
    net(torch.ones(1, 2)).backward()
    optimizer.step()
    listening.end_step()
    with torch.no_grad():
        net(torch.ones(1, 2))
    assert by_name(listening) == {"rest": 3}


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("trained_in_training_mode", "phase"), [(True, "rest"), (False, "forward")])
def test_a_pass_in_evaluation_mode_is_not_training_unless_all_are(
    listening: StepHooks, clock: Clock, trained_in_training_mode: bool, phase: str
) -> None:
    """Scripts evaluate after each step without no_grad (pyGAT); others train with all layers in evaluation mode."""
    net, optimizer = made(clock)
    net.train(trained_in_training_mode)
    find(listening, net)
    net(torch.ones(1, 2)).backward()
    optimizer.step()
    listening.end_step()
    net.eval()
    net(torch.ones(1, 2))
    assert by_name(listening) == {phase: 3}


@pytest.mark.promise("P17")
def test_a_watched_model_is_copied_and_saved_as_if_it_were_not(listening: StepHooks) -> None:
    net = torch.nn.Linear(2, 1)
    listening.on_step = iter(()).__next__  # as of a session, which has generators
    listening.find_roots()
    net(torch.ones(1, 2))
    listening.keep_roots()
    assert net._forward_pre_hooks
    saved = io.BytesIO()
    torch.save(net, saved)
    for other in (copy.deepcopy(net), torch.load(io.BytesIO(saved.getvalue()), weights_only=False)):
        assert torch.equal(other(torch.ones(1, 2)), net(torch.ones(1, 2)))
        assert not any(isinstance(hook, BeforeForward) for hook in other._forward_pre_hooks.values())


@pytest.mark.promise("P18")
def test_torch_is_as_before_afterwards(clock: Clock) -> None:
    names = [
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.nn.Module, "__call__"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    hooks = StepHooks()
    hooks.install()
    net, optimizer = made(clock)
    hooks.find_roots()
    hooks.remove()
    assert [getattr(owner, name) for owner, name in names] == before
    net(torch.ones(1, 2)).backward()
    optimizer.step()
    assert hooks.steps == 0


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_step_is_a_backward_pass_where_weights_are_updated_by_hand(listening: StepHooks, clock: Clock, by_hand: bool) -> None:
    listening.by_hand = by_hand
    net, optimizer = made(clock)
    for _ in range(3):
        net(torch.ones(1, 2)).backward()
    torch.autograd.grad(net(torch.ones(1, 2)).sum(), list(net.parameters()), allow_unused=True)
    assert listening.steps == (4 if by_hand else 0)
    assert listening.trained_on == "cpu"
    optimizer.step()
    assert listening.steps == (4 if by_hand else 1), "an optimizer that steps later is not counted twice"


def test_steps_are_those_of_the_thread_that_calls_the_backward_pass(listening: StepHooks, clock: Clock) -> None:
    """An optimizer that steps within the backward pass may do so in a thread of autograd, which has no loop."""
    net, optimizer = made(clock)
    elsewhere = concurrent.futures.ThreadPoolExecutor(1)
    net(torch.ones(1, 2)).backward()
    elsewhere.submit(optimizer.step).result()
    seen = listening.steps_here, elsewhere.submit(lambda: listening.steps_here).result()
    assert (listening.steps, *seen) == (1, 1, 0)
    elsewhere.submit(net(torch.ones(1, 2)).backward).result()
    assert (listening.steps_here, elsewhere.submit(lambda: listening.steps_here).result()) == (0, 1)
    elsewhere.shutdown()


class FakeGraph:
    """What `torch.cuda.graph` calls; a replay takes 5 ms."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def capture_begin(self, *args: Any) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.clock.tick(5)


@pytest.fixture
def graphs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), {}))
    return torch.cuda.CUDAGraph  # type: ignore[return-value]


def test_a_replay_with_the_step_of_an_optimizer_is_a_step(clock: Clock, graphs: type[FakeGraph]) -> None:
    hooks = StepHooks()
    hooks.install()
    net, optimizer = made(clock)
    whole, forward = graphs(clock), graphs(clock)
    forward.capture_begin()
    net(torch.ones(2))
    forward.capture_end()
    whole.capture_begin("pool")
    net(torch.ones(2)).backward()
    optimizer.step()
    whole.capture_end()
    assert not hooks.stepped  # nothing was computed yet
    assert hooks.losses == []  # what a capture calls the loss is memory that replays write to
    hooks.end_step()
    hooks.enter(PREPARE)
    forward.replay()
    assert not hooks.stepped
    whole.replay()
    clock.tick(2)
    assert (hooks.stepped, hooks.steps) == (True, 1)
    assert by_name(hooks) == {"prepare": 5, "forward": 5, "rest": 2}
    hooks.remove()
    whole.replay()
    assert hooks.steps == 1
    assert graphs.replay is FakeGraph.replay


def test_a_graph_that_was_captured_without_hooks_counts_as_a_step(clock: Clock, graphs: type[FakeGraph]) -> None:
    hooks = StepHooks()
    hooks.install()
    hooks.pause()
    graph = graphs(clock)
    graph.capture_begin()
    graph.capture_end()
    hooks.unpause()
    graph.replay()
    assert hooks.stepped
    hooks.remove()


def test_gradients_may_be_asked_for_by_keyword(listening: StepHooks, clock: Clock) -> None:
    """As gradient penalties do, and torch itself where it captures a graph."""
    net, _ = made(clock)
    point = torch.ones(1, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(outputs=net(point).sum(), inputs=point, create_graph=True)
    torch.autograd.backward(tensors=slope.square().sum())
    assert net.inner.weight.grad is not None
    assert len(listening.losses) == 1


# ---- measurements on a device, with a fake one ----


def one_step_cuda(device: FakeCuda, hooks: StepHooks) -> None:
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
    one_step_cuda(device, hooks)
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
