"""The fix `graph`: a model is captured in a loop that runs, and computes what it did before.

`pretended` does on a CPU what `torch.cuda.make_graphed_callables` does on a GPU: outputs and gradients lie in memory that the next
replay overwrites. The tests marked `gpu` use the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from stoker.diagnose.experiments.graph import Graph, other_weights


class Pretended:
    """Graphs of one model, and how often they were captured and replayed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.captured = 0
        self.replayed = 0

    def __call__(self, run: Callable[..., Any], samples: tuple[torch.Tensor, ...], *, allow_unused_input: bool) -> Any:
        assert allow_unused_input
        assert not torch.is_autocast_cache_enabled()
        self.captured += 1
        taken = [weight for weight in self.model.parameters() if weight.requires_grad]
        inputs = samples[: -len(taken)]
        assert all(one is other for one, other in zip(samples[len(inputs) :], taken, strict=True))  # they have taken the places
        for _ in range(3):
            outputs, form = tree_flatten(run(*samples))
        static_outputs = [tensor.detach().clone() for tensor in outputs]
        static_grads = [torch.empty_like(tensor) for tensor in samples]
        pretended = self

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
                for mine, theirs in zip(samples, values, strict=True):
                    if mine.data_ptr() != theirs.data_ptr():
                        assert mine.shape == theirs.shape
                        mine.data.copy_(theirs)
                pretended.replayed += 1
                for static in static_grads:  # the forward pass uses their memory, too
                    static.fill_(float("nan") if static.is_floating_point() else -1)
                weights = [weight for weight in pretended.model.parameters() if weight.requires_grad]
                with torch.enable_grad(), other_weights(pretended.model, weights) as swapped:
                    ctx.leaves = [*inputs, *swapped]
                    ctx.outputs = tree_flatten(run(*samples))[0]
                for static, one in zip(static_outputs, ctx.outputs, strict=True):
                    static.copy_(one.detach())
                return tuple(tensor.detach() for tensor in static_outputs)

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
                asked = [weight for weight in ctx.leaves if weight.requires_grad]
                found = iter(torch.autograd.grad(ctx.outputs, asked, grads, allow_unused=True))
                back: list[torch.Tensor | None] = []
                for static, leaf in zip(static_grads, ctx.leaves, strict=True):
                    grad = next(found) if leaf.requires_grad else None
                    if grad is not None:
                        static.copy_(grad)
                    back.append(None if grad is None else static.detach())
                return tuple(back)

        return lambda *values: tree_unflatten(list(Replay.apply(*values)), form)


class Tied(nn.Module):
    """An embedding whose weights are also those of its output, a layer that is not used, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 6)
        self.out = nn.Linear(6, 12, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: torch.Tensor, *, scale: float = 1.0, targets: torch.Tensor | None = None) -> Any:
        scores = self.out(self.frozen(self.table(tokens))) * scale
        loss = None if targets is None else nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        return scores if loss is None else (scores, loss)


def perceptron() -> tuple[nn.Module, Callable[[int], Any]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    return model, lambda step: ((torch.full((5, 6), 0.1 * step) + torch.eye(5, 6),), {})


def recurrent() -> tuple[nn.Module, Callable[[int], Any]]:
    return nn.LSTM(6, 4, num_layers=2, batch_first=True), lambda step: ((torch.full((3, 5, 6), 0.1 * step),), {})


def tied() -> tuple[nn.Module, Callable[[int], Any]]:
    tokens = torch.arange(20).reshape(4, 5) % 12
    return Tied(), lambda step: (((tokens + step) % 12,), {"scale": 0.5, "targets": tokens})


MODELS = {"perceptron": perceptron, "recurrent": recurrent, "tied": tied}


def train(
    name: str,
    device: str,
    switch_on: Callable[[nn.Module, Any], None] = lambda model, optimizer: None,
    *,
    micro_steps: int = 1,
    to_none: bool = True,
    bf16: bool = False,
) -> list[float]:
    """Losses of some steps. The fix is switched on after three, while the loop still has the loss of the last one."""
    torch.manual_seed(0)
    model, calls = MODELS[name]()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kept = []
    for step in range(8):
        if step == 3:
            switch_on(model, optimizer)
        optimizer.zero_grad(set_to_none=to_none)
        for micro in range(micro_steps):
            args, kwargs = calls(step + micro)
            moved = [tensor.to(device) for tensor in args]
            named = {key: one.to(device) if isinstance(one, torch.Tensor) else one for key, one in kwargs.items()}
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                out = model(*moved, **named)
            found = out if isinstance(out, torch.Tensor) else out[1] if name == "tied" else out[0]
            loss = found.float().square().mean() / micro_steps
            loss.backward()
            kept.append(loss.detach())
        optimizer.step()
    return [float(loss) for loss in kept]


STEPS = pytest.mark.parametrize(("micro_steps", "to_none"), [(1, True), (1, False), (3, True), (3, False)])


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("name", "micro_steps", "to_none"), [("perceptron", 3, False), ("recurrent", 1, True), ("tied", 3, True), ("tied", 1, False)]
)
def test_a_captured_model_trains_as_before(
    name: str, micro_steps: int, to_none: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    fix, made = Graph(), []
    request.addfinalizer(fix.remove)

    def switch_on(model: nn.Module, optimizer: Any) -> None:
        made.append(Pretended(model))
        monkeypatch.setattr(torch.cuda, "make_graphed_callables", made[0])
        fix.on([model], optimizer, [])

    expected = train(name, "cpu", micro_steps=micro_steps, to_none=to_none)
    found = train(name, "cpu", switch_on, micro_steps=micro_steps, to_none=to_none)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (made[0].captured, made[0].replayed) == (1, 5 * micro_steps)


@pytest.mark.promise("P17")
@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@STEPS
@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_captured_on_a_gpu_trains_as_before(
    name: str, micro_steps: int, to_none: bool, bf16: bool, request: pytest.FixtureRequest
) -> None:
    fix = Graph()
    request.addfinalizer(fix.remove)
    options: dict[str, Any] = {"micro_steps": micro_steps, "to_none": to_none, "bf16": bf16}
    expected = train(name, "cuda", **options)
    found = train(name, "cuda", lambda model, optimizer: fix.on([model], optimizer, []), **options)
    assert fix.used
    assert found == pytest.approx(expected, rel=1e-2 if bf16 else 1e-4)


def test_a_graph_is_used_for_the_shapes_it_was_captured_with_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fix = nn.Linear(3, 2), Graph()
    graphs = Pretended(model)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphs)
    calls: list[int] = []
    model.register_forward_pre_hook(lambda module, args: calls.append(1))  # it watches the model: called, but not captured
    fix.begin([model], None)
    for rows in (4, 4, 2, 4):
        model(torch.ones(rows, 3))
    assert (graphs.captured, graphs.replayed, len(calls), fix.used) == (1, 3, 4, True)
    with torch.no_grad():
        model(torch.ones(4, 3))
    model.eval()(torch.ones(4, 3))
    model.train()(input=torch.ones(4, 3))
    assert graphs.replayed == 3
    fix.remove()
    model.train()(torch.ones(4, 3))
    assert graphs.replayed == 3
    assert "forward" not in vars(model)


def test_a_model_that_is_called_with_an_object_has_no_graph() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, given: Any) -> torch.Tensor:
            return self.weight * 2

    model, fix = Takes(), Graph()
    fix.begin([model], None)
    assert fix.used
    assert model(object()).tolist() == [2.0, 2.0]
    assert (fix.used, fix.unused_reason) == (
        False,
        "the model is called with object; a graph has tensors and plain values as arguments",
    )
    fix.remove()
    assert "forward" not in vars(model)
