"""On a GPU: packed kernels equal the plain form forward and backward, nothing waits, and a graph gives the bits of eager steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.recipes.icecube.plain_model import random_events, random_model
from tests.recipes.running import stop_and_resume, weights_of
from torch import Tensor

import stoker
from stoker._device import sync_debug_mode
from stoker_recipes.icecube import make_events, pack_events
from stoker_recipes.icecube.losses import VmfLoss
from stoker_recipes.icecube.model import IceCubeModel, IceCubeSize, make_packing, norm, plain_trunk
from stoker_recipes.icecube.optimizer import MuonAdamW
from stoker_recipes.icecube.training import resume, train

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

LENGTHS = [3, 0, 70, 128, 1, 63, 64, 127, 126, 30]
WIDE = IceCubeSize(layers=3)


def gradients(model: IceCubeModel, out: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (out.float() * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).sin()).sum().backward()
    # Copies: a gradient on the CPU would move to the GPU with its weight.
    return {name: weight.grad.cpu().clone() for name, weight in model.named_parameters() if weight.grad is not None}


def poison() -> None:
    """Freed memory holds NaN, so that a row which no kernel writes is seen."""
    for _ in range(4):
        torch.full((1 << 24,), float("nan"), device="cuda")


@pytest.mark.promise("P29")
@pytest.mark.parametrize("lengths", [LENGTHS, [300, 5, 129, 400]])
@pytest.mark.parametrize(("kind", "near"), [("fp32", 2e-5), ("bf16", 0.03), ("bf16 residual", 0.04)])
@pytest.mark.parametrize(
    "size", [WIDE, IceCubeSize(layers=1), IceCubeSize(layers=2, width=64, heads=2, ffn=128), IceCubeSize(layers=2, input="none")]
)
def test_outputs_and_gradients_equal_the_plain_form(size: IceCubeSize, kind: str, near: float, lengths: list[int]) -> None:
    model = random_model(size, dtype=torch.float32)
    tokens, offsets, _ = random_events(lengths, extra=200, dtype=torch.float32)
    given = model.input_proj(tokens) if size.input == "linear" else tokens
    expected = norm(plain_trunk(given, model, make_packing(offsets, len(tokens))))
    plain = gradients(model, expected)
    model.cuda().residual = torch.bfloat16 if kind == "bf16 residual" else torch.float32
    poison()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind != "fp32"):
        found = model.embed(tokens.cuda(), offsets.cuda())
    fused = gradients(model, found)
    assert float((found.cpu() - expected).norm() / expected.norm()) < near
    assert fused.keys() == plain.keys()
    for name, gradient in plain.items():
        limit = 10 * near if "lambdas" in name else 3 * near  # of scalars the terms cancel
        assert float((fused[name] - gradient).norm() / gradient.norm()) < limit, name


def test_a_model_of_odd_width_takes_the_plain_form() -> None:
    model = random_model(IceCubeSize(layers=1, width=96, heads=3, ffn=64), dtype=torch.float32).cuda()
    tokens, offsets, _ = random_events(LENGTHS, dtype=torch.float32)
    out = model(tokens.cuda(), offsets.cuda())
    torch.testing.assert_close(out.cpu(), model.cpu()(tokens, offsets), rtol=1e-3, atol=1e-3)


def test_a_step_waits_for_nothing() -> None:
    model = random_model(WIDE, dtype=torch.float32).cuda()
    loss, optimizer = VmfLoss(10).cuda(), MuonAdamW(model.matrices(), model.others(), warmup=2, total=10)
    tokens, offsets, target = (one.cuda() for one in random_events(LENGTHS, dtype=torch.float32))

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            raw = model(tokens, offsets)
        loss(raw, target)["loss"].backward()
        optimizer.step()

    step()
    with sync_debug_mode("error"):
        step()


@pytest.fixture(scope="module")
def ice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ice")
    pack_events(make_events(folder / "icecube", files=2, events=512), folder / "ice.stoker")
    return folder / "ice.stoker"


@pytest.mark.promise("P29")
def test_graphs_give_the_weights_of_eager_steps(ice: Path) -> None:
    options: dict[str, Any] = {"size": "tiny", "batch_size": 64, "epochs": 2, "warmup": 4, "device": "cuda"}
    eager, graphs = (weights_of(train(ice, graph=graph, **options)) for graph in (False, True))
    for name, tensor in eager.items():
        torch.testing.assert_close(graphs[name], tensor, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_a_run_with_graphs_resumes(ice: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": "tiny", "batch_size": 64, "epochs": 2, "warmup": 4, "device": "cuda"}
    done, whole = stop_and_resume(partial(train, ice), resume, tmp_path, **options)
    assert done.result.step == 32
    for name, tensor in weights_of(done).items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-3, atol=1e-5)


def test_predictions_are_those_of_the_cpu(ice: Path, tmp_path: Path) -> None:
    train(ice, folder=tmp_path / "run", size="tiny", batch_size=64, epochs=1, warmup=4, device="cuda")
    gpu, cpu = (stoker.load(tmp_path / "run", device=device).predict(ice) for device in ("cuda", "cpu"))
    assert abs(gpu["zenith"].to_numpy() - cpu["zenith"].to_numpy()).mean() < 0.02
