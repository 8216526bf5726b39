"""The TFA models on a GPU: the kernel of attention against torch's own, and steps as graphs. Skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.before import tfa_loop
from torch import nn

import stoker
from stoker_recipes.tfa import model as attention
from stoker_recipes.tfa.model import Banded, Tfa

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
CASES = [
    ((5, 48, 8, 16, 48), torch.float32),
    ((5, 48, 8, 16, 48), torch.float16),
    ((5, 48, 8, 16, 48), torch.bfloat16),
    ((2, 53, 8, 16, 48), torch.bfloat16),
    ((3, 34, 4, 24, 32), torch.bfloat16),
    ((2, 40, 2, 48, 5), torch.float32),
]
"""Runs, rows, heads, numbers of a head, rows of a window; and the type."""


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_the_kernel_is_as_near_to_float64_as_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    runs, rows, heads, size, length = shape
    torch.manual_seed(0)
    qkv = torch.randn(runs, rows, 3 * heads * size, device=DEVICE).to(dtype).requires_grad_()
    found = attention.window_attention(qkv, heads, length)
    gradient = torch.randn_like(found)
    (found_gradient,) = torch.autograd.grad(found, qkv, gradient)
    exact_qkv = qkv.detach().double().requires_grad_()
    exact = attention.attend_plain(exact_qkv, heads=heads, length=length)
    (exact_gradient,) = torch.autograd.grad(exact, exact_qkv, gradient.double())
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert (found - exact).abs().max().item() < tolerance * exact.abs().max().item()
    assert (found_gradient - exact_gradient).abs().max().item() < tolerance * exact_gradient.abs().max().item()


def test_torch_finds_nothing_wrong_with_the_operation() -> None:
    qkv = torch.randn(3, 20, 3 * 32, device=DEVICE, requires_grad=True)
    torch.library.opcheck(attention.window_attention, (qkv, 2, 16))


def moments() -> dict[str, torch.Tensor]:
    return {"mean": torch.zeros(7), "std": torch.ones(7)}


def test_outputs_and_gradients_are_those_of_the_plain_formulation() -> None:
    torch.manual_seed(0)
    theirs = tfa_loop.Tfa(**moments()).to(DEVICE)
    ours = Tfa(**moments()).to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    run = torch.randn(60, 7, device=DEVICE)
    windows = run.unfold(0, 48, 1).transpose(1, 2)
    for model, given in ((theirs, windows), (ours, run[None])):
        model(given).reshape(-1).sigmoid().sum().backward()
    torch.testing.assert_close(ours(run[None])[0], theirs(windows)[:, 0], rtol=0, atol=3e-6)
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        scale = other.grad.abs().max().item() if other.grad is not None else 0.0
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-4 * max(scale, 1e-3), msg=name)


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of what torch itself does
@pytest.mark.parametrize(("kind", "compiled"), [("windows", False), ("runs", False), ("banded", False), ("runs", True)], ids=str)
def test_steps_as_a_graph_have_the_losses_of_a_cpu(kind: str, compiled: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48 + 8 * 32 - 1, 7), dtype=np.float32)
    store = stoker.Store.from_arrays(lengths=[len(x)], x=x, y=(x[:, 0] > 0).astype(np.float32))
    losses = {}
    for device in ("cpu", DEVICE):
        view, batch = (
            (stoker.Windows(48, tail="drop"), 32) if kind == "windows" else (stoker.Windows(79, stride=32, tail="drop"), 1)
        )
        feed = stoker.Feed(store, view, batch_size=batch, device=device, last_batch="drop")
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"width": 32, "heads": 2, "layers": 2, "hidden": 32}
        model: nn.Module = Banded(**moments(), window=24, **sizes) if kind == "banded" else Tfa(**moments(), **sizes)
        kept = Kept()
        trainer = stoker.Trainer(
            model.to(device),
            lambda model, batch: nn.functional.binary_cross_entropy_with_logits(
                model(batch["x"])[:, -batch["y"][:, 47:].shape[1] :], batch["y"][:, 47:]
            ),
            torch.optim.AdamW(model.parameters(), lr=1e-3),
            precision="fp32",
            execution=stoker.train.Execution(fused=True, graph=device == DEVICE, compile=compiled and device == DEVICE),
            logging=stoker.train.Logging(every=1),
            callbacks=[kept],
            progress=False,
        )
        trainer.fit(feed, epochs=2)
        losses[device] = kept.losses
    assert len(losses["cpu"]) == 16
    np.testing.assert_allclose(losses[DEVICE], losses["cpu"], rtol=1e-3)


class Kept:
    """A writer that keeps the losses of steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def write(self, step: int, values: Any) -> None:
        if "rate" in values:
            self.losses.append(values["loss"])

    def close(self) -> None:
        pass
