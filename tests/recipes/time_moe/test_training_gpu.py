"""On a GPU: the model equals itself on a CPU, the step waits for nothing, and is a graph."""

from __future__ import annotations

import pytest
import torch
from tests.recipes.time_moe.test_kernels_gpu import apart
from tests.recipes.time_moe.test_model import model_of
from torch import Tensor

from stoker._device import sync_debug_mode
from stoker_recipes.time_moe import SIZES, Size, TimeMoe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # torch warns of what it does itself as it compiles
]
NARROW = Size(hidden=64, intermediate=256, layers=2, heads=2, experts=8, top_k=2, max_position=1024)


def batch_of(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    series = torch.randn(rows, length + 1, device="cuda")
    segments = torch.randint(0, 2, (rows, length), device="cuda").cumsum(1) // 40
    return series[:, :-1], series[:, 1:], segments


def loss_and_gradients(model: TimeMoe, x: Tensor, y: Tensor, segments: Tensor | None, *, bf16: bool = False) -> list[Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
        loss = model.loss(x, y, segments=segments)
    loss.backward()
    return [loss.detach().double(), *(weight.grad.double() for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("packed", [False, True])
def test_the_model_equals_itself_in_float64_on_a_cpu(packed: bool) -> None:
    torch.manual_seed(0)
    plain = TimeMoe(NARROW, dtype=torch.float64)
    model = TimeMoe(NARROW).cuda()
    model.load_state_dict(plain.state_dict())
    x, y, segments = batch_of(2, 300)
    given = segments if packed else None
    expected = loss_and_gradients(plain, x.double().cpu(), y.double().cpu(), None if given is None else given.cpu())
    exact, short = (loss_and_gradients(model, x, y, given, bf16=bf16) for bf16 in (False, True))
    assert apart(exact[0].cpu(), expected[0]) < 1e-5
    assert apart(short[0].cpu(), expected[0]) < 1e-2
    assert all(apart(one.cpu(), other) < 1e-3 for one, other in zip(exact[1:], expected[1:], strict=True))
    together = [torch.cat([one.flatten().cpu() for one in gradients[1:]]) for gradients in (short, expected)]
    assert apart(*together) < 0.1  # a position whose two best experts are close may go to another


@pytest.mark.parametrize(("packed", "bf16"), [(False, True), (True, False), (True, True)])
def test_a_compiled_step_waits_for_nothing_and_is_a_graph(packed: bool, bf16: bool) -> None:
    torch.manual_seed(0)
    model = TimeMoe(NARROW).cuda()
    x, y, segments = batch_of(2, 256)
    given = segments if packed else None
    eager = loss_and_gradients(model, x, y, given, bf16=bf16)
    model.compile(dynamic=False, fullgraph=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for mode in ("default", "error"):
            with sync_debug_mode(mode):
                compiled = loss_and_gradients(model, x, y, given, bf16=bf16)
    torch.cuda.current_stream().wait_stream(stream)
    assert apart(compiled[0], eager[0]) < (1e-2 if bf16 else 1e-5)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loss_and_gradients(model, x, y, given, bf16=bf16)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        replayed = captured[0].clone()
        assert apart(replayed, loss_and_gradients(model, x, y, given, bf16=bf16)[0]) < (1e-3 if bf16 else 1e-5)
    assert apart(replayed, compiled[0]) > 0  # the batch was another one


def test_forecast_is_that_on_a_cpu() -> None:
    model, context = model_of(SIZES["tiny"], torch.float32), torch.randn(3, 30)
    expected = model.forecast(context, 41)
    torch.testing.assert_close(model.cuda().forecast(context.cuda(), 41).cpu(), expected, rtol=1e-3, atol=1e-3)
